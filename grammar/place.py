"""Where in a JSON Schema that is part of a program the fault is which the compiler's sentence does not place: found by compiling parts of it."""

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from grammar.errors import GrammarError
from grammar.matcher import Library

MOST_TRIES = 300
MOST_SECONDS = 0.3
"""Of this thread's own time."""
_SCHEMA = re.compile(r"(?:^// (.*)\n)?^\w+: %json (\{.*\})$", re.MULTILINE)
"""A rule that is a schema on one line, behind a comment with its place in the request."""
_DEFINITIONS = ("$defs", "definitions")
_MAPS = ("properties", "patternProperties", *_DEFINITIONS)
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties")
_NAME = re.compile(r"[\w$-]{1,64}")
Schema = dict[str, Any]


def placed(library: Library, program: str, error: GrammarError) -> GrammarError:
    """The same error of `program`, which does not compile, with a place if one can be found in little time."""
    search = _Search(library, str(error))
    for said, text in _SCHEMA.findall(program):
        try:
            schema = msgspec.json.decode(text, type=Schema)
        except (msgspec.DecodeError, RecursionError):
            continue
        if search.fails(schema):
            return GrammarError(str(error), said + "".join(search.steps(schema)))
    return error


class _Search:
    """For schemas that fail with the same sentence."""

    def __init__(self, library: Library, sentence: str) -> None:
        self._library = library
        self._sentence = sentence
        self._tries = 0
        self._ends = time.thread_time() + MOST_SECONDS

    def fails(self, schema: Schema) -> bool:
        self._tries += 1
        if self._tries > MOST_TRIES or time.thread_time() > self._ends:
            return False
        try:
            self._library.compile(f"start: %json {json.dumps(schema)}")
        except GrammarError as error:
            return str(error) == self._sentence
        return False

    def steps(self, schema: Schema) -> Iterator[str]:
        """From a schema that fails down to the innermost part of it that does."""
        shared = {name: schema[name] for name in (*_DEFINITIONS, "x-guidance") if name in schema}
        found: Schema | None = schema
        while found is not None:
            parts, found = _parts(found), None
            for step, part in parts:
                if self.fails(shared | part):
                    yield step
                    found = part
                    break


def _parts(schema: Schema) -> Iterator[tuple[str, Schema]]:
    for name, value in schema.items():
        if name in _SINGLE and isinstance(value, dict):
            yield f".{name}", value
        elif name in _LISTS and isinstance(value, list):
            yield from ((f".{name}[{number}]", part) for number, part in enumerate(value) if isinstance(part, dict))
        elif name in _MAPS and isinstance(value, dict):
            yield from ((f".{name}{step_to(key)}", part) for key, part in value.items() if isinstance(part, dict))


def step_to(name: str) -> str:
    """To a member of an object, as paths in errors have it."""
    return f".{name}" if _NAME.fullmatch(name) else f"[{json.dumps(name[:64])}]"
