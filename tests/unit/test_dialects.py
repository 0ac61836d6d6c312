"""Parsers of tool calls and reasoning: what they find, that no cut of the text changes it, and that nothing of the text is lost."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.registry import TOOLS
from tests.support.dialect_events import PARTS, cut, parse, reader, seen, written

CALL = '{"name": "f", "arguments": {"x": 1}}'
F = ("f", '{"x": 1}', True)
CASES: list[tuple[str, str, str, list[tuple[str, str, bool]]]] = [
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [F]),
    ("hermes", f"Let me see.\n\n<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{CALL}\n</tool_call>", "Let me see.", [F, F]),
    ("hermes", f"<tool_call>{CALL}</tool_call> Done.", " Done.", [F]),
    ("hermes", f"<tool_call>{CALL}<tool_call>{CALL}", "", [F, F]),
    ("hermes", '<tool_call>{"arguments": {"x": 1}, "id": [1, {"a": "}"}], "name": "f"}</tool_call>', "", [F]),
    ("hermes", '<tool_call>{"name": "f", "parameters": {"s": "a\\"}{[<tool_call>"}}</tool_call>', "", [("f", '{"s": "a\\"}{[<tool_call>"}', True)]),
    ("hermes", '<tool_call>{"name": "get_time"}</tool_call>', "", [("get_time", "{}", True)]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1', "", [("f", '{"x": 1', False)]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1]}, 5', "]}, 5", [("f", '{"x": 1', False)]),
    ("hermes", f'<tool_call>{{"name": "f", "arguments": {{"x": 1}}\n</tool_call>\n<tool_call>{CALL}</tool_call>', "", [F, F]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1} or\n</tool_call>', "or\n</tool_call>", [F]),
    ("hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>', '<tool_call>{"name": "other", "arguments": {}}</tool_call>', []),
    ("hermes", "<tool_call>soon</tool_call> <tool_cal", "<tool_call>soon</tool_call> <tool_cal", []),
    ("hermes", f"<tool_call>\nNo: <tool_call>{CALL}</tool_call>", "<tool_call>\nNo:", [F]),
    ("hermes", '<tool_call>{"name": 5}', '<tool_call>{"name": 5}', []),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}', '<tool_call>{"name": "f", "arguments": "{}"}', []),
    ("hermes", '<tool_call>{"name": "f", "na', '<tool_call>{"name": "f", "na', []),
    ("llama3_json", '{"name": "f", "parameters": {"x": 1}}', "", [F]),
    ("llama3_json", ' {"type": "function", "name": "f", "parameters": {"x": 1}}; {"name": "f", "parameters": {"x": 1}}', "", [F, F]),
    ("llama3_json", '{"name": "f", "parameters": {"x": 1}}\n{"name": "f", "parameters": {"x": 1}}\n{"a": 1}', '\n{"a": 1}', [F, F]),
    ("llama3_json", '{"name": "f", "parameters": {"x": 1};{"name": "f", "parameters": {"x": 1}}', "", [F, F]),
    ("llama3_json", 'So: <|python_tag|>{"name": "f", "parameters": {"x": 1}}', "So:", [F]),
    ("llama3_json", '{"name": "Alice", "age": 5}', '{"name": "Alice", "age": 5}', []),
    ("llama3_json", '<|python_tag|>f.call(x=1)', "<|python_tag|>f.call(x=1)", []),
    ("llama3_json", 'A {"name": "f", "parameters": {}}', 'A {"name": "f", "parameters": {}}', []),
    ("mistral", f"[TOOL_CALLS] [{CALL}, {CALL}]", "", [F, F]),
    ("mistral", f"Well. [TOOL_CALLS][{CALL}", "Well.", [F]),
    ("mistral", '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]get_time[CALL_ID]abcdef123[ARGS]{}', "", [F, ("get_time", "{}", True)]),
    ("mistral", '[TOOL_CALLS]f {"x": 1}', "", [F]),
    ("mistral", "[TOOL_CALLS]g[ARGS]{}", "[TOOL_CALLS]g[ARGS]{}", []),
    ("mistral", "[TOOL_CALLS] none, really", "[TOOL_CALLS] none, really", []),
    (
        "qwen3_coder",
        "I will.\n<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=s>\na\n\"b\"<c>\n</parameter>\n</function>\n</tool_call>",
        "I will.",
        [("f", '{"x": 1, "s": "a\\n\\"b\\"<c>"}', True)],
    ),
    ("qwen3_coder", "<tool_call>\n<function=get_time>\n</function>\n</tool_call>\n<tool_call><function=get_time></function>", "",
     [("get_time", "{}", True)] * 2),
    ("qwen3_coder", "<function=f><parameter=x>one</parameter></function>", "", [("f", '{"x": "one"}', True)]),
    ("qwen3_coder", "<tool_call>\n<function=g>\n</function>", "<tool_call>\n<function=g>\n</function>", []),
    ("qwen3_coder", "<tool_call> hm", "<tool_call> hm", []),
    ("qwen3_coder", "<function=f><parameter=s>half</para", "", [("f", '{"s": "half</para', False)]),
]  # fmt: skip


@pytest.mark.parametrize(("tools", "text", "content", "calls"), CASES)
def test_calls(tools: str, text: str, content: str, calls: list[tuple[str, str, bool]]) -> None:
    whole = parse([text], tools)
    assert seen(whole) == (content, calls, "")
    assert written(whole) == text
    assert parse(text, tools) == whole
    for _, arguments, complete in calls:
        if complete:
            json.loads(arguments)


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", False, "Hm.", "Yes."),
        ("\n<think>Hm.</think>Yes <think> no", False, "Hm.", "Yes <think> no"),
        ("Hm.\n</think>\n\nYes.", True, "Hm.", "Yes."),
        ("\n<think>\nHm.</think>", True, "Hm.", ""),
        ("\n\n</think>\n\nYes.", True, "", "Yes."),
        ("Hm. </thin", True, "Hm. </thin", ""),
        ("Yes </think> no", False, "", "Yes </think> no"),
        (" <thin", False, "", " <thin"),
        (" <thinker>", False, "", " <thinker>"),
        (" " * 300 + "<think>Hm.</think>", False, "", " " * 300 + "<think>Hm.</think>"),
        ("Hm." + " " * 300 + "</think>" + "\n" * 300 + "Yes", True, "Hm." + " " * 300, "\n" * 300 + "Yes"),
    ],
)
def test_reasoning(text: str, inside: bool, reasoning: str, content: str) -> None:
    whole = parse([text], None, "think", inside)
    assert seen(whole) == (content, [], reasoning)
    assert written(whole) == text
    assert parse(text, None, "think", inside) == whole


def test_calls_behind_reasoning() -> None:
    text = f"<think>A <tool_call> is due.</think>\n\n<tool_call>{CALL}</tool_call>"
    whole = parse([text], "hermes", "think")
    assert seen(whole) == ("", [F], "A <tool_call> is due.")
    assert parse(text, "hermes", "think") == whole


TEXTS = st.lists(st.one_of(st.sampled_from(PARTS), st.text(max_size=3)), max_size=30).map("".join)


CUTS = {"text": TEXTS, "places": st.lists(st.integers(0, 10_000), max_size=12), "inside": st.booleans(), "thinks": st.booleans()}


@pytest.mark.parametrize("tools", [*TOOLS, None])
@settings(max_examples=40)
@given(**CUTS)
def test_any_cut_gives_the_same_and_nothing_is_lost(tools: str | None, text: str, places: list[int], inside: bool, thinks: bool) -> None:
    check_cut(tools, text, places, inside, thinks)


@pytest.mark.slow
@pytest.mark.parametrize("tools", [*TOOLS, None])
@settings(max_examples=3000)
@given(**CUTS)
def test_many_cuts_give_the_same(tools: str | None, text: str, places: list[int], inside: bool, thinks: bool) -> None:
    check_cut(tools, text, places, inside, thinks)


def check_cut(tools: str | None, text: str, places: list[int], inside: bool, thinks: bool) -> None:
    reasoning = "think" if thinks else None
    whole = parse([text], tools, reasoning, inside)
    assert written(whole) == text
    assert parse(cut(text, places), tools, reasoning, inside) == whole
    assert parse(text, tools, reasoning, inside) == whole
    seen(whole)


FEW, MEGABYTE = 200_000, 1 << 20
LONG = {
    "prose": ("hermes", "Word after word. " * (MEGABYTE // 17)),
    "whitespace": ("mistral", " " * MEGABYTE),
    "markers": ("hermes", "<tool_call>" * (MEGABYTE // 11)),
    "half markers": ("qwen3_coder", "<tool_" * (MEGABYTE // 6)),
    "brackets": ("mistral", "[TOOL_CALLS][" + "[" * MEGABYTE),
    "arguments": ("hermes", '<tool_call>{"name": "f", "arguments": {"s": "' + "a\\n" * (MEGABYTE // 3) + '"}}</tool_call>'),
    "arguments before the name": ("hermes", '<tool_call>{"arguments": {"s": "' + "a" * MEGABYTE + '"}, "name": "f"}</tool_call>'),
    "no calls": ("hermes", '<tool_call>{"a": "<tool_call>{"' * (MEGABYTE // 32)),
    "a long value": ("qwen3_coder", "<function=f><parameter=x>" + "7\n" * (MEGABYTE // 2)),
    "objects": ("llama3_json", '{"name": "f", "parameters": {"x": 1}};' * (MEGABYTE // 38)),
    "names": ("mistral", "[TOOL_CALLS]" + "f " * (MEGABYTE // 2)),
}


@pytest.mark.parametrize("size", [FEW, pytest.param(MEGABYTE, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("tools", "text"), LONG.values(), ids=list(LONG))
def test_long_texts_are_read_in_linear_time_and_little_is_held_back(tools: str, text: str, size: int) -> None:
    """Eight times the text may take twenty times as long, not sixty-four times."""
    few, many = (_seconds(text[:length], tools) for length in (size // 8, size))
    assert many < 20 * few + 0.5 * size / MEGABYTE


def _seconds(text: str, tools: str) -> float:
    begin, made, said = time.process_time(), reader(tools, "think"), 0
    for at in range(0, len(text), 64):
        said += len(written(made.push(text[at : at + 64])))
        assert tools == "qwen3_coder" or at + 64 - said < 70_000
    made.finish()
    return time.process_time() - begin
