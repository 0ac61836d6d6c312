"""Calls as models write them, with anything in their arguments, in each dialect: they are read as they were meant, however the text is cut, and
where they are damaged nothing of the text is lost."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_dialects import OFFERED, PARTS, cut, parse, seen, written

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


def check_damaged(writer: str, calls: list[Call], style: dict[str, Any], places: list[int], damages: list[tuple[int, int, str]]) -> None:
    dialect, write = WRITERS[writer]
    text = write(calls, style)
    for place, size, instead in damages:
        at = place % (len(text) + 1)
        text = text[:at] + instead + text[at + size :]
    whole = parse([text], dialect)
    assert written(whole) == text
    assert parse(cut(text, places), dialect) == whole == parse(text, dialect)


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(**WELL)
def test_what_is_written_is_read(writer: str, calls: list[Call], style: dict[str, Any], places: list[int]) -> None:
    check_written(writer, calls, style, places)


@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(**WELL, damages=DAMAGES)
def test_what_is_damaged_is_not_lost(
    writer: str, calls: list[Call], style: dict[str, Any], places: list[int], damages: list[tuple[int, int, str]]
) -> None:
    check_damaged(writer, calls, style, places, damages)


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
@settings(max_examples=2000, deadline=None)
@given(**WELL, damages=DAMAGES)
def test_much_is_written_and_damaged(
    writer: str, calls: list[Call], style: dict[str, Any], places: list[int], damages: list[tuple[int, int, str]]
) -> None:
    check_written(writer, calls, style, places)
    check_damaged(writer, calls, style, places, damages)
