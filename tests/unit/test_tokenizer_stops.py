"""Stop strings: found whatever the pieces, never shown and taken back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenizer_proc.stops import StopMatcher


def run(pieces: list[str], strings: list[str], include: bool = False) -> tuple[str, str | None]:
    """Everything let through, and the stop string found."""
    matcher = StopMatcher(strings, include)
    out = ""
    for piece in pieces:
        out += matcher.push(piece)
        if matcher.matched is not None:
            return out, matcher.matched
    return out + matcher.flush(), matcher.matched


def expected(text: str, strings: list[str], include: bool) -> tuple[str, str | None]:
    """The rule in one line: earliest place, then the shortest."""
    found = sorted((at, len(stop), stop) for stop in strings if (at := text.find(stop)) >= 0)
    if not found:
        return text, None
    at, length, stop = found[0]
    return text[: at + length * include], stop


@pytest.mark.parametrize(
    ("strings", "include", "text", "matched"),
    [
        (["ldEN"], False, "Hello wor", "ldEN"),
        (["ldEN"], True, "Hello worldEN", "ldEN"),
        ([" wor"], False, "Hello", " wor"),
        (["EN", "ldEND"], False, "Hello wor", "ldEND"),
        (["xyz"], False, "Hello worldEND", None),
    ],
)
def test_over_token_borders(strings: list[str], include: bool, text: str, matched: str | None) -> None:
    assert run(["Hello", " world", "END"], strings, include) == (text, matched)


def test_holds_back_only_what_may_begin_a_stop() -> None:
    matcher = StopMatcher(["\n\nUser:"])
    assert matcher.push("Fine.\n") == "Fine."
    assert matcher.push("\nUs") == ""
    assert matcher.push("ing it") == "\n\nUsing it"
    assert matcher.push("\n\nUser") == ""
    assert matcher.push(": more") == ""
    assert matcher.matched == "\n\nUser:"
    assert matcher.push("later") == ""


def test_a_string_begun_earlier_is_waited_for() -> None:
    matcher = StopMatcher(["abcd", "bc"])
    assert matcher.push("xabc") == "x"
    assert matcher.matched is None
    assert matcher.push("d") == ""
    assert matcher.matched == "abcd"


def test_a_waiting_match_counts_at_the_end() -> None:
    assert run(["abc"], ["abcd", "bc"]) == ("a", "bc")


texts = st.text(alphabet="ab\u00e9", max_size=40)


@given(text=texts, strings=st.lists(st.text(alphabet="ab\u00e9", min_size=1, max_size=5), max_size=4), include=st.booleans(), data=st.data())
def test_any_split_gives_the_same(text: str, strings: list[str], include: bool, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run(pieces, strings, include) == expected(text, strings, include)


@given(text=texts, strings=st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3))
def test_never_holds_back_more_than_needed(text: str, strings: list[str]) -> None:
    """Without a match, what is held is the longest end of the text that begins a stop string."""
    if expected(text, strings, False)[1] is not None:
        return
    shown = StopMatcher(strings).push(text)
    held = text[len(shown) :]
    assert held == "" or any(stop.startswith(held) for stop in strings)
