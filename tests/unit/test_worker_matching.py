"""Masks of rows on their thread: what comes when, what fails alone, and that nobody waits for ever."""

import json
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from grammar.matcher import Matcher
from grammar.program import program_of
from messages.constraint import Constraint
from tests.support.vocabularies import END, SIZE, allowed, library
from transport.columns import I32
from worker import matching as module
from worker.matching import Matching, Wanted

ABC = program_of(Constraint("regex", "ab?c"))
VOCAB = SIZE + 40
"""Of the model: rows that pad it have no token."""


class Matchers:
    """`grammar.matcher.Library` whose masks are those of another, late, slow or never."""

    words, ends = library().words, library().ends

    def __init__(self, before: Callable[[list[Matcher]], object] = lambda matchers: None) -> None:
        self.before = before
        self.calls: list[int] = []

    def compile(self, program: str) -> Matcher:
        return library().compile(program)

    def accept(self, steps: list[tuple[Matcher, int]]) -> list[bool]:
        return library().accept(steps)

    def masks(self, matchers: list[Matcher]) -> I32:
        self.calls.append(len(matchers))
        self.before(matchers)
        return library().masks(matchers)


def made(matchers: Matchers | None = None, rows: int = 1, program: str = ABC) -> Matching:
    """Rows in slots 0, 1, ..."""
    matching = Matching(VOCAB)
    matching.grammars[7] = library().compile(program)
    matching.use(matchers or Matchers())
    for slot in range(rows):
        matching.admit(slot, 7)
    return matching


def wanted(matching: Matching, *generated: int) -> list[Wanted]:
    """Batch rows of slots 0, 1, ..., with so many tokens each."""
    return matching.wanted(np.arange(len(generated), dtype=np.int32), np.array(generated))


def test_masks_follow_the_tokens() -> None:
    matching = made(rows=2)
    masks = matching.wait(wanted(matching, 0, 0))
    assert masks.row.tolist() == [0, 1]
    assert masks.words.shape == (2, -(-VOCAB // 32))
    assert [allowed(mask) for mask in masks.words] == [[ord("a"), 256 + 8], [ord("a"), 256 + 8]]
    matching.note(matching.rows[1], [ord("a")])
    masks = matching.wait(wanted(matching, 0, 1))
    assert [allowed(mask) for mask in masks.words] == [[ord("a"), 256 + 8], [ord("b"), ord("c")]]
    matching.note(matching.rows[1], [ord("b"), ord("c")])
    assert allowed(matching.wait(wanted(matching, 0, 3)).words[1]) == [END]


def test_a_slot_s_next_row_begins_anew_and_rows_without_a_grammar_are_not_wanted() -> None:
    matching = made()
    old = matching.rows[0]
    matching.note(old, [ord("a")])
    matching.release(0)
    matching.release(5)
    assert wanted(matching, 1, 0) == []
    matching.admit(0, 7)
    matching.note(old, [ord("c")])  # late
    assert allowed(matching.wait(wanted(matching, 0)).words[0])[0] == ord("a")
    assert matching.knows(np.array([7], np.int32))
    assert not matching.knows(np.array([7, 8], np.int32))


def test_behind_the_end_anything_may_come() -> None:
    matching = made()
    matching.note(matching.rows[0], [ord("a"), ord("c"), END])
    want = wanted(matching, 3)
    assert (matching.wait(want).words == -1).all()
    assert not matching.unmatched(want, 1).any()


def test_a_token_that_is_not_allowed_fails_its_row_alone() -> None:
    matching = made(rows=2)
    matching.note(matching.rows[0], [ord("x")])
    want = wanted(matching, 1, 0)
    masks = matching.wait(want)
    assert (masks.words[0] == -1).all()
    assert allowed(masks.words[1])[0] == ord("a")
    assert matching.unmatched(want, 3).tolist() == [True, False, False]
    matching.note(matching.rows[0], [ord("a")])
    matching.fail(matching.rows[0], "for another reason")
    assert "doesn't satisfy" in matching.rows[0].failed


def test_a_library_that_breaks_fails_the_rows_it_was_asked_for() -> None:
    def breaks(matchers: list[Matcher]) -> None:
        raise BaseException("a panic")

    matching = made(Matchers(breaks), rows=2)
    want = wanted(matching, 0, 0)
    matching.wait(want)
    assert matching.unmatched(want, 2).all()


def test_a_mask_that_does_not_come_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    gate = threading.Event()
    matching = made(Matchers(lambda matchers: gate.wait(60)))
    looked: list[int] = []
    want = wanted(matching, 0)
    matching.wait(want, lambda: looked.append(1))
    gate.set()
    assert looked
    assert matching.unmatched(want, 1).all()


def test_who_waits_hears_of_a_device_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    gate = threading.Event()
    matching = made(Matchers(lambda matchers: gate.wait(60)))

    def check() -> None:
        raise RuntimeError("the device")

    with pytest.raises(RuntimeError, match="the device"):
        matching.wait(wanted(matching, 0), check)
    gate.set()


def test_rows_are_asked_for_together_and_a_slow_one_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 2)
    matching = made(matchers := Matchers(), rows=1)
    matching.wait(wanted(matching, 0))
    gate = threading.Event()
    matchers.before = lambda matchers: gate.wait(60)
    matching.note(matching.rows[0], [ord("a")])
    matching.wake()
    while len(matchers.calls) < 2:
        time.sleep(0.001)
    for slot in range(1, 4):
        matching.admit(slot, 7)
    matching.rows[3].cost = 1.0
    gate.set()
    matching.wait(wanted(matching, 1, 0, 0, 0))
    assert matchers.calls == [1, 1, 2, 1]
    assert matching.rows[3].cost < 1.0


def test_slow_rows_beyond_what_a_step_can_bear_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of the step would wait for all of them."""

    def burn(matchers: list[Matcher]) -> None:
        ends = time.thread_time() + 0.02
        while time.thread_time() < ends:
            pass

    monkeypatch.setattr(module, "SLOW_ALLOWANCE", 0.03)
    gate = threading.Event()
    matching = made(matchers := Matchers(lambda matchers: gate.wait(60)), rows=1)
    matching.wake()
    while not matchers.calls:
        time.sleep(0.001)
    for slot in range(1, 6):
        matching.admit(slot, 7)
        matching.rows[slot].cost = 0.5
    matchers.before = burn
    gate.set()
    want = wanted(matching, 0, 0, 0, 0, 0, 0)
    matching.wait(want)
    assert matching.unmatched(want, 6).tolist() == [False, False, False, True, True, True]
    assert "too slow" in matching.rows[5].failed


def test_a_schema_from_beginning_to_end() -> None:
    text = b'{"a":"ab"}'
    program = program_of(Constraint("json_schema", json.dumps({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})))
    matching = made(program=program)
    for place, byte in enumerate(text):
        assert byte in allowed(matching.wait(wanted(matching, place)).words[0])
        matching.note(matching.rows[0], [byte])
    assert END in allowed(matching.wait(wanted(matching, len(text))).words[0])
