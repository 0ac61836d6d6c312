"""Errors of schemas say where the fault is: the innermost part that does not compile, in the request that it came with."""

import json
from typing import Any

import pytest

from dialects.constraint import Wanted, grammar_of
from grammar import place
from grammar.errors import GrammarError
from grammar.program import program_of
from grammar.trial import try_out
from messages.constraint import Constraint
from tests.support.vocabularies import library


def error_of(program: str) -> GrammarError:
    with pytest.raises(GrammarError) as found:
        try_out(library(), program)
    return found.value


def within(part: Any) -> dict[str, Any]:
    """A schema with this part deep in it."""
    return {"type": "object", "properties": {"ok": {}, "a b": {"type": "array", "items": {"anyOf": [{"type": "null"}, part]}}}, "required": ["a b"]}


DEEP = '.properties["a b"].items.anyOf[1]'


@pytest.mark.parametrize(
    ("schema", "path", "why"),
    [
        (within({"type": "banana"}), DEEP, "Invalid type: banana"),
        (within({"type": "string", "pattern": "(?=a)b"}), DEEP, "look-around"),
        (within({"$ref": "#/$defs/x"}) | {"$defs": {"x": {"not": {}}}}, DEEP, "Unimplemented keys"),
        (within(5), '.properties["a b"].items', "must be an object or boolean"),
        ({"not": {}}, "", "Unimplemented keys"),
        ({"type": "object", "properties": {"x": {"minimum": 5, "maximum": 3, "type": "integer"}}, "required": ["x"]}, ".properties.x", "minimum (5)"),
        ({"type": "object", "properties": {"x": {"type": "string", "format": "nope"}}}, ".properties.x", "Unknown format"),
    ],
    ids=str,
)
def test_the_innermost_part(schema: dict[str, Any], path: str, why: str) -> None:
    error = error_of(program_of(Constraint("json_schema", json.dumps(schema))))
    assert (error.place, why in str(error)) == (path, True), error


@pytest.mark.parametrize("dialect", ["hermes", "qwen3_coder"])
def test_the_tool_in_the_request(dialect: str) -> None:
    tools = {"good": {}, "bad": {"type": "object", "properties": {"x": within({"type": "banana"})}}}
    places = {"good": "tools[0].function.parameters", "bad": "tools[1].function.parameters"}
    error = error_of(program_of(Constraint("lark", grammar_of(dialect, Wanted(tools, True, True, {}, places)))))
    assert error.place == f"tools[1].function.parameters.properties.x{DEEP}"


@pytest.mark.parametrize("program", ["start: b", "start: %json {]", 'start: one c\none: %json {"type": "null"}'])
def test_what_is_no_fault_of_a_schema_has_no_place(program: str) -> None:
    assert error_of(program).place == ""


@pytest.mark.parametrize(("limit", "value"), [("MOST_TRIES", 3), ("MOST_SECONDS", 0.0)])
def test_the_search_has_an_end(monkeypatch: pytest.MonkeyPatch, limit: str, value: float) -> None:
    monkeypatch.setattr(place, limit, value)
    error = error_of(program_of(Constraint("json_schema", json.dumps(within({"not": {}})))))
    assert "Unimplemented keys" in str(error)
    assert DEEP.startswith(error.place)
    assert error.place != DEEP
