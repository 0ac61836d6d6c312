"""Which form is tried when, and who is told: tenants in turn, each form once, what takes long beside the others."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from messages.constraint import Constraint
from messages.text import Problem
from tokenizer_proc import grammar_checks, problems
from tokenizer_proc.grammar_checks import GrammarChecks
from tokenizer_proc.grammar_line import Room, Trial, Turns
from tokenizer_proc.grammar_trier import Outcome
from tokenizer_proc.verdicts import Verdict


def form(text: str, param: str = "guided_regex") -> Constraint:
    return Constraint("regex", text, param)


class Stage:
    """Triers whose trials last until the test ends them, and what askers were told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stage = self
        self.now = 0.0
        self.begun: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.ends: dict[str, Callable[[Outcome], None]] = {}
        self.extends: dict[str, Callable[[], bool]] = {}

        class Held:
            def __init__(self, run_dir: Path, back: Any, extend: Any) -> None:
                self.back, self.extend = back, extend

            def give(self, trial: Trial) -> None:
                text = trial.constraint.text
                stage.begun.append(text)
                stage.ends[text] = lambda outcome: self.back(self, trial, outcome)
                stage.extends[text] = lambda: bool(self.extend(trial))

        monkeypatch.setattr(grammar_checks, "Trier", Held)
        self.checks = GrammarChecks(asyncio.get_running_loop(), Path(), clock=lambda: self.now)

    def ask(self, name: str, text: str, tenant: str = "", size: int = 0, wanted: Callable[[], bool] = lambda: True) -> None:
        def failed(problem: Problem) -> None:
            self.told.append((name, problem.code))

        self.checks.check(form(text), lambda program: self.told.append((name, program)), failed, tenant=tenant, size=size, wanted=wanted)

    async def end(self, text: str, outcome: Outcome) -> None:
        self.ends.pop(text)(outcome)
        await asyncio.sleep(0)


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


async def test_a_form_is_tried_once_for_all_who_ask(stage: Stage) -> None:
    for name in "abc":
        stage.ask(name, "x")
    assert (stage.begun, stage.checks.waiting) == (["x"], 3)
    await stage.end("x", Verdict("P"))
    stage.ask("d", "x")
    assert stage.told == [("a", "P"), ("b", "P"), ("c", "P"), ("d", "P")]
    assert (stage.begun, stage.checks.waiting) == (["x"], 0)


async def test_tenants_have_their_turns(stage: Stage) -> None:
    for number in range(6):
        stage.ask(f"many{number}", f"m{number}", tenant="many")
    stage.ask("few", "f", tenant="few")
    stage.ask("few too", "m5", tenant="few")
    order = []
    while stage.ends:
        text = next(iter(stage.ends))
        order.append(text)
        await stage.end(text, Verdict(text))
    assert order == ["m0", "m1", "m2", "f", "m3", "m5", "m4"]
    assert stage.checks.waiting == 0


async def test_what_takes_long_has_one_more_thread_and_no_other(stage: Stage) -> None:
    for text in ("long", "longer", "quick", "last"):
        stage.ask(text, text)
    assert stage.begun == ["long", "longer"]
    assert stage.extends["long"]()
    assert stage.extends["long"]()  # asked again
    await asyncio.sleep(0)
    assert stage.begun[2:] == ["quick"]
    assert not stage.extends["longer"]()
    await stage.end("longer", None)
    assert stage.begun[3:] == ["last"]
    await stage.end("quick", Verdict("Q"))
    assert len(stage.begun) == 4
    await stage.end("long", Verdict("L"))
    assert stage.begun[4:] == ["longer"]
    assert stage.extends["longer"]()
    await stage.end("longer", Verdict("", "too complex"))
    assert dict(stage.told) == {"quick": "Q", "long": "L", "longer": "invalid_grammar"}


async def test_what_takes_long_is_not_begun_once_for_each_who_asks(stage: Stage) -> None:
    for text in ("longest", "other"):
        stage.ask(text, text)
    assert stage.extends["longest"]()
    await asyncio.sleep(0)
    stage.ask("third", "third")
    for tenant in "abc":
        stage.ask(tenant, "long", tenant=tenant)
    await stage.end("other", Verdict("O"))
    assert stage.begun == ["longest", "other", "third", "long"]
    await stage.end("long", None)
    assert stage.begun[4:] == [], "only where there is time for such forms"
    await stage.end("longest", Verdict("L"))
    assert stage.begun[4:] == ["long"]
    await stage.end("long", Verdict("P"))
    assert dict(stage.told) == {"other": "O", "longest": "L"} | dict.fromkeys("abc", "P")


async def test_who_has_gone_is_not_tried_for_and_who_waits_too_long_is_told(stage: Stage) -> None:
    stage.ask("a", "a")
    stage.ask("b", "b")
    stage.ask("gone", "g", wanted=lambda: False)
    stage.ask("late", "l")
    stage.now = grammar_checks.WAIT_SECONDS + 1
    stage.ask("new", "n")
    await stage.end("a", problems.no_trial("it is broken"))
    assert stage.begun == ["a", "b", "n"]
    assert dict(stage.told) == {"a": "internal_error", "late": "overloaded"}
    await stage.end("b", Verdict("", "another time", passing=True))
    stage.ask("b again", "b")
    assert stage.begun[3:] == ["b"]


async def test_hundreds_wait_and_the_bytes_are_bounded(stage: Stage) -> None:
    for number in range(1000):
        stage.ask("x", f"small{number}", tenant="one")
    assert stage.told == []
    for number in range(100):
        stage.ask(f"large{number}", f"large{number}", tenant="one", size=1 << 20)
    assert {code for _, code in stage.told} == {"overloaded"}
    assert 30 < len(stage.told) < 40
    del stage.told[:]
    for number in range(20):
        stage.ask("other", f"other{number}", tenant="two", size=1 << 20)
    assert stage.told == []
    while stage.ends:
        text = next(iter(stage.ends))
        await stage.end(text, Verdict(text))
    assert (stage.checks._room._free, stage.checks._room._taken) == (grammar_checks.MOST_BYTES, {})


def test_a_tenant_leaves_room_for_another() -> None:
    room = Room(100)
    taken = [sum(room.take(tenant, 1) for _ in range(100)) for tenant in ("a", "b", "c")]
    assert taken == [50, 25, 12]
    room.give_back("a", 50)
    assert room.take("c", 1)


def test_turns_skip_what_has_begun_elsewhere() -> None:
    turns, trial = Turns(), Trial(form("x"), 0.0)
    turns.put("a", trial)
    turns.put("b", trial)
    assert turns.take() is trial
    trial.begun = True
    assert turns.take() is None
