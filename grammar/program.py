"""From what a client asked for to a program that matchers are compiled from: a grammar in llguidance's Lark syntax."""

import json
from typing import Any

import msgspec

from grammar.errors import GrammarError
from grammar.schema_parts import Schema, parts_of
from messages.constraint import MAX_CHOICES, MAX_PROGRAM, Constraint

MAX_DEPTH = 64
WHITESPACE = r"(\x20|\x0A[\x20\x09]{0,40})?"
"""Between the parts of a JSON text: a space, or a new line and its indentation. Without a bound small models write blanks without end."""
FORMATS: dict[str, Schema] = {"date-time": {"maxLength": 35}, "time": {"maxLength": 24}, "email": {"maxLength": 254, "pattern": "^[^@]{1,64}@"}}
"""What is added to strings in these formats: nine digits of a second, and what mail can be sent to (RFC 5321, 4.5.3.1). Else small models write
digits without end."""
_JSON_OPTIONS = {"x-guidance": {"lenient": False, "whitespace_flexible": True, "whitespace_pattern": WHITESPACE}}


def program_of(constraint: Constraint) -> str:
    """The program of a constraint. Raises GrammarError; what is wrong within a grammar only its compilation shows."""
    match constraint.kind:
        case "json_object":
            program = f"start: %json {json.dumps({'type': 'object'} | _JSON_OPTIONS)}"
        case "json_schema":
            program = f"start: %json {_schema(constraint.text)}"
        case "regex":
            program = f"start: /{_pattern(constraint.text)}/"
        case "choice":
            program = "start: " + " | ".join(json.dumps(choice) for choice in _choices(constraint.text))
        case "lark":
            program = constraint.text
    if len(program) > MAX_PROGRAM:
        raise GrammarError(f"it is longer than {MAX_PROGRAM} characters when written out")
    return program


def _schema(text: str) -> str:
    schema = _decoded(text)
    if not isinstance(schema, dict):
        raise GrammarError("a JSON Schema must be an object")
    if _depth(schema) > MAX_DEPTH:
        raise GrammarError(f"the JSON Schema is nested more than {MAX_DEPTH} deep")
    _adapt(schema)
    return json.dumps(schema | _JSON_OPTIONS)


def _adapt(schema: Schema) -> None:
    """Bounds formats, of strings that say nothing of their length or characters themselves, and leaves out what llguidance refuses at any value and
    says nothing at this one."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        added = FORMATS.get(part["format"], {}) if isinstance(part.get("format"), str) else {}
        if part.keys().isdisjoint(("minLength", "maxLength", "pattern")):
            part |= added
        if part.get("uniqueItems") is False:
            del part["uniqueItems"]
        waiting += [inner for _, inner in parts_of(part)]


def _choices(text: str) -> list[str]:
    choices = _decoded(text)
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise GrammarError("choices must be a list of strings, at least one")
    if len(choices) > MAX_CHOICES:
        raise GrammarError(f"there are {len(choices)} choices; the limit is {MAX_CHOICES}")
    return choices


def _pattern(text: str) -> str:
    """The expression between slashes: slashes of its own, and what would end the line, are escaped."""
    written, escaped = [], False
    for character in text:
        if character == "\n":
            written.append("n" if escaped else "\\n")
        else:
            written.append("\\/" if character == "/" and not escaped else character)
        escaped = character == "\\" and not escaped
    return "".join(written)


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise GrammarError(f"it is not valid JSON: {error}") from error


def _depth(value: Any) -> int:
    """Of nested objects and lists, one after the other: recursion has no end of its own."""
    depth, level = 0, [value]
    while level := [part for one in level if isinstance(one, dict | list) for part in (one.values() if isinstance(one, dict) else one)]:
        depth += 1
        if depth > MAX_DEPTH:
            break
    return depth
