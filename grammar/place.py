"""Where in a JSON Schema that is part of a program the fault is which the compiler's sentence does not place: found by compiling parts of it."""

import json
import re
import time
from collections.abc import Iterator

import msgspec

from grammar.errors import GrammarError
from grammar.matcher import Library
from grammar.schema_parts import DEFINITIONS, Schema, parts_of

MOST_TRIES = 300
MOST_SECONDS = 0.3
"""Of this thread's own time."""
UNSATISFIABLE = "Unsatisfiable schema"
_SCHEMA = re.compile(r"(?:^// (.*)\n)?^\w+: %json (\{.*\})$", re.MULTILINE)
"""A rule that is a schema on one line, behind a comment with its place in the request."""


def placed(library: Library, program: str, error: GrammarError) -> GrammarError:
    """The same error of `program`, which does not compile, with a place if one can be found in little time."""
    search = _Search(library, str(error))
    for said, text in _SCHEMA.findall(program):
        try:
            schema = msgspec.json.decode(text, type=Schema)
        except (msgspec.DecodeError, RecursionError):
            continue
        if search.fails(schema):
            path = said + "".join(search.steps(schema))
            return GrammarError(search.sentence, path)
    return error


class _Search:
    """For schemas that fail with the same `sentence`, or one of the same kind, which is taken then: the inner one says more."""

    def __init__(self, library: Library, sentence: str) -> None:
        self._library = library
        self.sentence = sentence
        self._tries = 0
        self._ends = time.thread_time() + MOST_SECONDS

    def fails(self, schema: Schema) -> bool:
        self._tries += 1
        if self._tries > MOST_TRIES or time.thread_time() > self._ends:
            return False
        try:
            self._library.compile(f"start: %json {json.dumps(schema)}")
        except GrammarError as error:
            if str(error) == self.sentence:
                return True
            if str(error).startswith(UNSATISFIABLE) and self.sentence.startswith(UNSATISFIABLE):
                self.sentence = str(error)
                return True
        return False

    def steps(self, schema: Schema) -> Iterator[str]:
        """From a schema that fails down to the innermost part of it that does."""
        shared = {name: schema[name] for name in (*DEFINITIONS, "x-guidance") if name in schema}
        found: Schema | None = schema
        while found is not None:
            parts, found = parts_of(found), None
            for step, part in parts:
                if self.fails(shared | part):
                    yield step
                    found = part
                    break
