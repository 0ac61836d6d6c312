"""Grammars that force calls: what they allow is what the parser of the dialect reads as calls of the tools."""

import tracemalloc
from functools import cache
from typing import Any

import pytest

from dialects.constraint import TooLongError, Wanted, grammar_of
from dialects.registry import REASONING, TOOLS
from grammar.llg import LlgLibrary
from grammar.program import program_of
from grammar.trial import try_out
from grammar.vocabulary_file import TokenBytes
from messages.constraint import MAX_TEXT, Constraint
from messages.request import MAX_TOOLS
from tests.support.vocabularies import allowed

OFFERED: dict[str, dict[str, Any]] = {
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "s": {"type": "string"}}, "required": ["a"], "additionalProperties": False},
    "now": {},
}
SPECIAL = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>")
IDS = {text: 256 + number for number, text in enumerate(SPECIAL)}
END = 256 + len(SPECIAL)
ALLOWED = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    "llama3_json": '{"name": "add", "parameters": {"a": 1, "s": "x"}}; {"name": "now", "parameters": {}}',
    "mistral": '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}, {"name": "now", "arguments": {}}]',
    "qwen3_coder": (
        "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=s>\n<b>\n\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>"
    ),
}
NEWER = '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{}'


def ids_of(text: str, ids: dict[str, int]) -> list[int]:
    found: list[int] = []
    while text:
        special = next((marker for marker in ids if text.startswith(marker)), None)
        found += [ids[special]] if special else text[0].encode()
        text = text[len(special) if special else 1 :]
    return found


@cache
def library() -> LlgLibrary:
    """A token for each byte, and the markers."""
    pieces = [*(bytes([number]) for number in range(256)), *(text.encode() for text in (*SPECIAL, "<end>"))]
    return LlgLibrary(TokenBytes(pieces, frozenset(range(256, END + 1)), [END]))


def follows(grammar: str, tokens: list[int]) -> bool:
    """Whether an answer of these tokens is one that the grammar allows, whole."""
    matcher = library().compile(program_of(Constraint("lark", grammar)))
    return matcher.accept(tokens) and END in allowed(library().masks([matcher])[0])


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("dialect", TOOLS)
def test_calls_and_nothing_else_are_allowed(dialect: str, special: bool) -> None:
    ids = IDS if special else {}
    text = NEWER if special and dialect == "mistral" else ALLOWED[dialect]
    grammar = grammar_of(dialect, Wanted(OFFERED, True, True, ids))
    assert follows(grammar, ids_of(text, ids))
    for wrong in ("Sure. " + text, "", text.replace('"a": 1', '"a": "1"').replace("\n1\n", "\none\n"), text.replace("add", "sub")):
        assert not follows(grammar, ids_of(wrong, ids))
    single = grammar_of(dialect, Wanted(OFFERED, True, False, ids))
    assert not follows(single, ids_of(text, ids))
    parser = TOOLS[dialect].make(OFFERED)
    events = parser.push(text) + parser.finish()
    assert [event.name for event in events if hasattr(event, "name")] == ["add", "now"]


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize(("text", "inside"), [("", False), ("<think>\nHm.\n</think>\n\n", False), ("Hm.</think>", True)])
def test_reasoning_may_come_first(text: str, inside: bool, special: bool) -> None:
    ids = IDS if special else {}
    grammar = grammar_of("hermes", Wanted(OFFERED, True, True, ids), REASONING["think"], inside)
    assert follows(grammar, ids_of(text + ALLOWED["hermes"], ids))
    assert not follows(grammar, ids_of("Hm." + ALLOWED["hermes"], ids))


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("dialect", TOOLS)
def test_any_text_with_calls_of_the_tools_is_allowed(dialect: str, special: bool) -> None:
    """Where no call must come: the calls that do are checked."""
    ids = IDS if special else {}
    calls = NEWER if special and dialect == "mistral" else ALLOWED[dialect]
    before = "" if dialect == "llama3_json" else "Sure <b>.\n"
    grammar = grammar_of(dialect, Wanted(OFFERED, False, True, ids), REASONING["think"])
    for text in ("", "Yes.", "<think>Hm.</think>Yes.", before + calls, "<think>Hm.</think>\n" * (dialect != "llama3_json") + calls):
        assert follows(grammar, ids_of(text, ids)), text
    for wrong in (calls.replace('"a": 1', '"a": "1"').replace("\n1\n", "\none\n"), calls.replace("add", "sub")):
        assert not follows(grammar, ids_of(before + wrong, ids))
    opened = grammar_of(dialect, Wanted(OFFERED, False, True, ids), REASONING["think"], inside=True)
    assert follows(opened, ids_of("Hm.</think>Yes.", ids))


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("dialect", TOOLS)
def test_as_many_tools_as_there_may_be_pass_the_trial(dialect: str, special: bool, forced: bool) -> None:
    """With the bounds of a matcher, as a server tries them."""
    many = {f"{name}_{number}": schema for number in range(MAX_TOOLS // 2) for name, schema in OFFERED.items()}
    grammar = grammar_of(dialect, Wanted(many, forced, True, IDS if special else {}), REASONING["think"], inside=True)
    assert len(grammar) < MAX_TEXT
    try_out(library(), program_of(Constraint("lark", grammar)))


def test_a_grammar_that_is_too_long_is_not_made() -> None:
    """The definitions are there again with each parameter: of all of these it would have 200 MB."""
    shared = {"enum": list(range(6000))}
    schema = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(5000)}, "$defs": {"a": shared}}
    tracemalloc.start()
    try:
        with pytest.raises(TooLongError):
            grammar_of("qwen3_coder", Wanted({"f": schema}, True, True, IDS), most=MAX_TEXT)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    whole = grammar_of("qwen3_coder", Wanted(OFFERED, True, True, IDS))
    assert grammar_of("qwen3_coder", Wanted(OFFERED, True, True, IDS), most=len(whole)) == whole
    with pytest.raises(TooLongError):
        grammar_of("qwen3_coder", Wanted(OFFERED, True, True, IDS), most=len(whole) - 1)
