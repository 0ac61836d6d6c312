"""Grammars of tool calls: each dialect's notation with the JSON Schemas of the tools in it, in llguidance's Lark syntax.

A rule with `[suffix=...]` is text up to the first place where the suffix comes. Text never matches special tokens.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from dialects import coder, hermes, mistral
from dialects.parameter_type import is_text
from dialects.registry import ReasoningDialect, Tools

_WRITTEN = {"x-guidance": {"lenient": False, "whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
"""As models are taught to write arguments. What the compiler does not know of a schema is an error."""
_ANY, _SOME = "/(?s:.*)/", "/(?s:.+)/"


class TooLongError(ValueError):
    """A grammar would be longer than it may be."""


@dataclass(frozen=True)
class Wanted:
    """Which tools may be called, and whether at least one call must come (`forced`) and more than one may (`several`). `ids`: of the markers that are
    special tokens, which a grammar must name by their ids; the others are text. `places`: where the schema of a tool stands in the request: a
    comment before each says so, for errors."""

    tools: Tools
    forced: bool
    several: bool
    ids: Mapping[str, int]
    places: Mapping[str, str] = field(default_factory=dict)

    def place(self, name: str, within: str = "") -> str:
        """The comment, if the place is known."""
        return f"// {self.places[name]}{within}\n" if name in self.places else ""

    def mark(self, text: str) -> str:
        """A marker as a terminal."""
        return f"<[{self.ids[text]}]>" if text in self.ids else _text(text)


@dataclass(frozen=True)
class _Notation:
    """What begins a call, rules of the `rest` of it, and what stands between two calls. `opening` None: a call begins only the answer."""

    opening: str | None
    rules: Callable[[Wanted], Iterator[str]]
    between: str = ""


def grammar_of(dialect: str, wanted: Wanted, reasoning: ReasoningDialect | None = None, inside: bool = False, most: float = math.inf) -> str:
    """The grammar of an answer with calls in this dialect (a name of `dialects.registry.TOOLS`): of calls alone where they are forced, else of any
    text in which each call is one of the tools. It may reason first; with `inside` the prompt has opened the reasoning.

    Raises TooLongError when it has more than `most` characters, before all of it is made: the definitions of a schema may be there again with each
    of its parameters.
    """
    notation = _NOTATIONS[dialect]
    start, rules = _forced(notation, wanted) if wanted.forced else _free(notation, wanted)
    if reasoning is not None and (wanted.forced or reasoning.closing in wanted.ids):
        thought, more = _thought(reasoning, wanted)
        start = f"{thought} {start}" if inside else f"({wanted.mark(reasoning.opening)} {thought})? {start}"
        rules += more
    lines, length = list[str](), -1
    for line in chain([f"start: {start}", *rules], notation.rules(wanted)):
        lines.append(line)
        length += 1 + len(line)
        if length > most:
            raise TooLongError(f"more than {most} characters")
    return "\n".join(lines)


def _forced(notation: _Notation, wanted: Wanted) -> tuple[str, list[str]]:
    call = "rest" if notation.opening is None else f"{wanted.mark(notation.opening)} rest"
    between = _text(notation.between) if notation.between else ""
    return ("call (more)*", [f"call: {call}", f"more: {between} call"]) if wanted.several else ("call", [f"call: {call}"])


def _free(notation: _Notation, wanted: Wanted) -> tuple[str, list[str]]:
    if notation.opening is None:
        return "(calls | TEXT)?", [f"calls: rest ({_text(notation.between)} rest)*", r"TEXT: /[^\{](?s:.*)/"]
    if notation.opening in wanted.ids:
        return "TEXT? (call TEXT?)*", [f"call: {wanted.mark(notation.opening)} rest", f"TEXT: {_SOME}"]
    tail = f"TAIL: {_SOME} & ~/(?s:.*{_pattern(notation.opening)}.*)/"
    return "call* TAIL?", ["call: before rest", _up_to("before", notation.opening), tail]


def _thought(reasoning: ReasoningDialect, wanted: Wanted) -> tuple[str, list[str]]:
    """Any text up to the closing marker, and what stands behind it."""
    gap = "GAP" if wanted.forced else ""
    rules = [r"GAP: /\n*/"] if wanted.forced else []
    if reasoning.closing in wanted.ids:
        return f"THOUGHT? {wanted.mark(reasoning.closing)} {gap}", [f"THOUGHT: {_SOME}", *rules]
    return f"thought {gap}", [_up_to("thought", reasoning.closing), *rules]


def _up_to(rule: str, end: str) -> str:
    """Any text up to the first `end`, which is text too."""
    return f"{rule}[suffix={_text(end)}]: {_ANY}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _pattern(text: str) -> str:
    """`text` in a regular expression between slashes."""
    return "".join(f"\\{character}" if character in r".^$*+?()[]{}|\/" else character for character in text)


def _objects(wanted: Wanted, arguments: str) -> Iterator[str]:
    """Rules of `object`: a call of any of the tools as a JSON object."""
    yield "object: " + " | ".join(f"object_{number}" for number in range(len(wanted.tools)))
    for number, (name, schema) in enumerate(wanted.tools.items()):
        head = '{"name": ' + json.dumps(name) + f', "{arguments}": '
        yield f"object_{number}: {_text(head)} arguments_{number} {_text('}')}"
        yield wanted.place(name) + _json(f"arguments_{number}", schema)


def _json(rule: str, schema: Mapping[str, Any]) -> str:
    return f"{rule}: %json {json.dumps({'type': 'object', **schema, **_WRITTEN})}"


def _hermes(wanted: Wanted) -> Iterator[str]:
    line = _text("\n")
    yield f"rest: {line} object {line} {wanted.mark(hermes.CLOSING)}"
    yield from _objects(wanted, "arguments")


def _llama(wanted: Wanted) -> Iterator[str]:
    yield "rest: object"
    yield from _objects(wanted, "parameters")


def _mistral(wanted: Wanted) -> Iterator[str]:
    """In the newer form where the vocabulary has its markers."""
    if mistral.ARGS not in wanted.ids:
        several = f"({_text(', ')} object)*" if wanted.several else ""
        yield f"rest: {_text(' ')}? {_text('[')} object {several} {_text(']')}"
        yield from _objects(wanted, "arguments")
        return
    yield "rest: " + " | ".join(f"call_{number}" for number in range(len(wanted.tools)))
    for number, (name, schema) in enumerate(wanted.tools.items()):
        yield f"call_{number}: {_text(name)} {wanted.mark(mistral.ARGS)} arguments_{number}"
        yield wanted.place(name) + _json(f"arguments_{number}", schema)


def _coder(wanted: Wanted) -> Iterator[str]:
    line = _text("\n")
    functions = " | ".join(f"function_{number}" for number in range(len(wanted.tools)))
    yield f"rest: {line} ({functions}) {_text(coder.FUNCTION_END)} {line} {wanted.mark(coder.CLOSING)}"
    for number, (name, schema) in enumerate(wanted.tools.items()):
        given: Mapping[str, Any] = schema.get("properties") or {}
        needed: frozenset[str] = frozenset(schema.get("required") or ())
        parts = [f"parameter_{number}_{place}" + ("" if parameter in needed else "?") for place, parameter in enumerate(given)]
        yield f"function_{number}: {_text(f'{coder.FUNCTION}{name}>')} {line} {' '.join(parts)}"
        for place, parameter in enumerate(given):
            comment = wanted.place(name, f".properties.{json.dumps(parameter)[1:-1]}")
            yield from _parameter(f"parameter_{number}_{place}", parameter, schema, comment)


def _parameter(rule: str, name: str, schema: Mapping[str, Any], comment: str) -> Iterator[str]:
    head, tail = _text(f"{coder.PARAMETER}{name}>\n"), f"\n{coder.PARAMETER_END}\n"
    if is_text(schema, name):
        yield f"{rule}: {head} {rule}_text"
        yield _up_to(f"{rule}_text", tail)
    else:
        yield f"{rule}: {head} {rule}_value {_text(tail)}"
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        yield f"{comment}{rule}_value: %json {json.dumps({**schema['properties'][name], **shared, **_WRITTEN})}"


_NOTATIONS = {
    "hermes": _Notation(hermes.OPENING, _hermes, "\n"),
    "llama3_json": _Notation(None, _llama, "; "),
    "mistral": _Notation(mistral.CALLS, _mistral),
    "qwen3_coder": _Notation(coder.OPENING, _coder, "\n"),
}
