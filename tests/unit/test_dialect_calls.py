"""Calls as models write them, with anything in their arguments, in each dialect: they are read as they were meant, however the text is cut, and
where they are damaged nothing of the text is lost."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.parameter_type import MOST_LOOKS, is_text
from tests.support.dialect_events import OFFERED, PARTS, cut, parse, seen, written

Call = tuple[str, dict[str, Any]]
HARD = [
    "</tool_call>", "<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "[ARGS]", "<think>", '"}}', "\\", '\\\\"', "{[", "]}", '\\"}', "\U0001f600", ";",
]  # fmt: skip
STRINGS = st.lists(st.one_of(st.sampled_from(HARD), st.text(st.characters(exclude_categories=["Cs"]), max_size=4)), max_size=4).map("".join)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), STRINGS)
VALUES = st.recursive(SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(STRINGS, inner, max_size=3)), max_leaves=8)
CALLS = st.lists(st.tuples(st.sampled_from(list(OFFERED)), st.dictionaries(STRINGS, VALUES, max_size=3)), min_size=1, max_size=3)
STYLES = st.fixed_dictionaries({
    "ensure_ascii": st.booleans(), "indent": st.sampled_from([None, 2]), "separators": st.sampled_from([None, (",", ":")]),
})  # fmt: skip


def objects(key: str, calls: list[Call], style: dict[str, Any]) -> list[str]:
    return [json.dumps({"name": name, key: arguments}, **style) for name, arguments in calls]


WRITERS: dict[str, tuple[str, Callable[[list[Call], dict[str, Any]], str]]] = {
    "hermes": ("hermes", lambda calls, style: "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects("arguments", calls, style))),
    "hermes, the name last": ("hermes", lambda calls, style: "".join(
        f"<tool_call>{json.dumps({'arguments': arguments, 'name': name}, **style)}</tool_call>" for name, arguments in calls
    )),
    "llama": ("llama3_json", lambda calls, style: "; ".join(objects("parameters", calls, style))),
    "llama, lines": ("llama3_json", lambda calls, style: "\n".join(objects("parameters", calls, style))),
    "llama, tags": ("llama3_json", lambda calls, style: "".join(f"<|python_tag|>{text}" for text in objects("parameters", calls, style))),
    "mistral": ("mistral", lambda calls, style: f"[TOOL_CALLS] [{', '.join(objects('arguments', calls, style))}]"),
    "mistral, newer": ("mistral", lambda calls, style: "".join(
        f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments, **style)}" for name, arguments in calls
    )),
}  # fmt: skip
PLACES = st.lists(st.integers(0, 10_000), max_size=12)
WELL: dict[str, Any] = {"calls": CALLS, "style": STYLES, "places": PLACES}
DAMAGES = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 6), st.one_of(st.just(""), st.sampled_from(PARTS))), min_size=1, max_size=4)


def check_written(writer: str, calls: list[Call], style: dict[str, Any], places: list[int]) -> None:
    dialect, write = WRITERS[writer]
    text = write(calls, style)
    events = parse(cut(text, places), dialect)
    content, found, _ = seen(events)
    assert written(events) == text
    assert (content, [(name, json.loads(arguments), whole) for name, arguments, whole in found]) == ("", [(*call, True) for call in calls])


def damage(text: str, damages: list[tuple[int, int, str]]) -> str:
    """In place of so many characters stands something else."""
    for place, size, instead in damages:
        at = place % (len(text) + 1)
        text = text[:at] + instead + text[at + size :]
    return text


def check_damaged(writer: str, calls: list[Call], style: dict[str, Any], places: list[int], damages: list[tuple[int, int, str]]) -> None:
    dialect, write = WRITERS[writer]
    text = damage(write(calls, style), damages)
    whole = parse([text], dialect)
    assert written(whole) == text
    assert parse(cut(text, places), dialect) == whole == parse(text, dialect)


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=15)
@given(**WELL)
def test_what_is_written_is_read(writer: str, calls: list[Call], style: dict[str, Any], places: list[int]) -> None:
    check_written(writer, calls, style, places)


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=15)
@given(**WELL, damages=DAMAGES)
def test_what_is_damaged_is_not_lost(
    writer: str, calls: list[Call], style: dict[str, Any], places: list[int], damages: list[tuple[int, int, str]]
) -> None:
    check_damaged(writer, calls, style, places, damages)


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=500)
@given(**WELL, damages=DAMAGES)
def test_much_is_written_and_damaged(
    writer: str, calls: list[Call], style: dict[str, Any], places: list[int], damages: list[tuple[int, int, str]]
) -> None:
    check_written(writer, calls, style, places)
    check_damaged(writer, calls, style, places, damages)


CODED: dict[str, dict[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {"s": {"type": "string"}, "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}, "o": {"$ref": "#/$defs/o"}, "any": {}},
        "$defs": {"o": {"type": "object"}},
    },
    "get_time": {},
}
OBJECTS = st.dictionaries(STRINGS, VALUES, max_size=2)
CODED_CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("f"), st.fixed_dictionaries({"s": STRINGS, "n": st.integers(), "o": OBJECTS, "any": STRINGS})),
        st.tuples(st.just("get_time"), st.just({})),
    ),
    min_size=1,
    max_size=3,
)


def coded(calls: list[Call], style: dict[str, Any]) -> str:
    """In the notation of Qwen3-Coder: texts as they are, all else as JSON."""
    parts = []
    for name, arguments in calls:
        values = {key: value if isinstance(value, str) else json.dumps(value, **style) for key, value in arguments.items()}
        inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
        parts.append(f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>")
    return "\n".join(parts)


@settings(max_examples=30)
@given(calls=CODED_CALLS, style=STYLES, places=PLACES, damages=DAMAGES)
def test_parameters_between_markers(calls: list[Call], style: dict[str, Any], places: list[int], damages: list[tuple[int, int, str]]) -> None:
    text = coded(calls, style)
    events = parse(cut(text, places), "qwen3_coder", tools=CODED)
    content, found, _ = seen(events)
    assert written(events) == text
    assert (content, [(name, json.loads(arguments), whole) for name, arguments, whole in found]) == ("", [(*call, True) for call in calls])
    damaged = damage(text, damages)
    whole = parse([damaged], "qwen3_coder", tools=CODED)
    assert written(whole) == damaged
    assert parse(cut(damaged, places), "qwen3_coder", tools=CODED) == whole == parse(damaged, "qwen3_coder", tools=CODED)


RECURSIVE = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}, "b": {"type": "array"}}}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, True),
        (True, True),
        ({"type": "string"}, True),
        ({"type": ["null", "string"]}, True),
        ({"type": "integer"}, False),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, False),
        ({"anyOf": [{"type": "integer"}, {}]}, True),
        ({"oneOf": [{"type": "boolean"}, {"type": "string"}]}, True),
        ({"allOf": [{"type": "number"}]}, False),
        ({"enum": ["a", 5]}, True),
        ({"enum": [1, None]}, False),
        ({"const": "a", "enum": None}, True),
        ({"properties": {"y": {}}}, False),
        ({"$ref": "#/$defs/a"}, False),
        ({"$ref": "#/$defs/nothing"}, True),
        ({"$ref": "https://elsewhere"}, True),
    ],
    ids=str,
)
def test_which_parameters_are_texts(schema: Any, text: bool) -> None:
    assert is_text(RECURSIVE | {"properties": {"x": schema}}, "x") == text


@pytest.mark.parametrize(
    "shared",
    [
        {"enum": [*range(MOST_LOOKS - 1), "x"]},
        {"enum": list(range(MOST_LOOKS))},
        {"anyOf": [{"type": "string"}, *({"type": "null"} for _ in range(MOST_LOOKS))]},
        {"anyOf": [{"$ref": f"#/$defs/{number}"} for number in range(MOST_LOOKS + 1)]},
    ],
    ids=["a text at last", "values", "alternatives", "references"],
)
def test_what_thousands_of_parameters_share_is_not_all_looked_at(shared: dict[str, Any]) -> None:
    one = {"type": "integer"}
    schema = {"properties": {"x": {"$ref": "#/$defs/shared"}}, "$defs": {"shared": shared} | {str(n): one for n in range(MOST_LOOKS + 1)}}
    assert is_text(schema, "x")
