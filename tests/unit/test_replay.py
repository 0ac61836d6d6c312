"""A replay makes the same plans, or names the first that differs."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.admit import Admit
from messages.result import Attached, WorkerReady
from messages.sampling import SamplingParams
from scheduler.engine import Engine
from scheduler.errors import InvariantError
from scheduler.recording import (
    Arrived,
    Computed,
    Drawn,
    Frame,
    Lost,
    Planned,
    Received,
    Repaired,
    Turn,
)
from scheduler.replay import ReplayError, ReplayReport, replay
from tests.support.recordings import RecordedBench, churn, frames_of, written
from tests.support.scheduler_bench import attached
from transport.columns import pack_i32

ROOT = Path(__file__).resolve().parents[2]

SETTINGS: dict[str, tuple[Attached, dict[str, Any]]] = {
    "as it comes": (attached(), {}),
    "no run-ahead": (attached(), {"run_ahead": 1}),
    "far ahead": (attached(), {"run_ahead": 4}),
    "no cache": (attached(), {"prefix_cache": False}),
    "few blocks": (attached(blocks=14, slots=8), {}),
    "few blocks, no cache": (attached(blocks=14, slots=8), {"prefix_cache": False, "run_ahead": 3}),
    "paced": (attached(step_tokens=64), {"chunk_tokens": 64, "target_itl": 0.015}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_replay_makes_the_same_plans(name: str, tmp_path: Path) -> None:
    geometry, changes = SETTINGS[name]
    bench = RecordedBench(tmp_path / "r", tokens=True, geometry=geometry, max_queue=8, **changes)
    churn(bench, list(SETTINGS).index(name), rounds=300)
    report = replay(tmp_path / "r")
    assert (report.difference, report.unread) == (None, 0)
    assert report.plans >= len(bench.worker.plans) > 50
    assert bool(bench.engine.tally.counts["preemptions"]) or "few" not in name
    frames = frames_of(tmp_path / "r")
    assert [report.messages, report.turns, report.plans] == [sum(isinstance(one, kind) for one in frames) for kind in (Received, Turn, Planned)]


def test_a_replay_in_another_process_makes_the_same_plans(tmp_path: Path) -> None:
    """Where strings have other hashes."""
    churn(RecordedBench(tmp_path / "r", tokens=True, geometry=attached(blocks=16, slots=8)), 99)
    code = f"from scheduler.replay import replay; report = replay({str(tmp_path / 'r')!r}); print(report.difference, report.plans)"
    for seed in ("1", "2"):
        command = [sys.executable, "-P", "-c", code]
        environment = {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        assert done.stdout.split() == ["None", str(replay(tmp_path / "r").plans)]


def test_a_recording_without_tokens_is_not_replayed(tmp_path: Path) -> None:
    churn(RecordedBench(tmp_path / "r", tokens=False), 1, rounds=10)
    with pytest.raises(ReplayError, match="record with --record-tokens"):
        replay(tmp_path / "r")


READY = Received(1.0, WorkerReady(worker="worker0"))


def joined() -> Received:
    return Received(1.0, msgspec.structs.replace(attached(), session=5))


def admitted() -> Received:
    return Received(
        1.0, Admit(tokenizer="tokenizer0", keys=[1], seeds=[1], prompt=pack_i32([1, 2]), sampling=SamplingParams(), end_ids=[], max_tokens=2)
    )


DIFFERENCES: dict[str, tuple[list[Frame], str]] = {
    "a plan only in the recording": ([Turn(1.0), Planned(5, 1, 1, 0, 1, b"")], "step 1 of session 5 is in the recording only, after 0 messages"),
    "a session only in the recording": ([Turn(1.0), Drawn(7)], "the recording begins session 7 and the replay does not"),
    "a session only in the replay": ([READY, Turn(1.0)], "the replay begins a new session and the recording does not"),
    "another plan": ([READY, Drawn(5), joined(), admitted(), Turn(1.0), Planned(5, 1, 2, 0, 2, b"12345678")], "is another plan in the replay"),
    "a plan only in the replay": ([READY, Drawn(5), joined(), admitted(), Turn(1.0), Turn(2.0)], "step 1 of session 5 is in the replay only"),
    "a plan only in the replay, at the end": ([READY, Drawn(5), joined(), admitted(), Turn(1.0)], ""),
    "a session cut off": ([READY], ""),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_the_first_difference_is_named(name: str, tmp_path: Path) -> None:
    contents, sentence = DIFFERENCES[name]
    report = replay(written(tmp_path / "r", *contents))
    assert sentence in (report.difference or "")
    assert bool(sentence) == (report.difference is not None)


FOREIGN: dict[str, Frame] = {
    "a request without tokens": Arrived(1.0, "tokenizer0", [1], 3, b"", SamplingParams(), None, 0, "", ""),
    "a result without tokens": Computed(1.0, 1, 1, 1, 0.0, 0.0),
    "a tokenizer that is none": Lost("nobody"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_does_not_belong_into_a_recording_with_tokens(name: str, tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match="cannot be replayed"):
        replay(written(tmp_path / "r", FOREIGN[name]))


def test_a_worker_beyond_this_machine(tmp_path: Path) -> None:
    huge = Received(1.0, msgspec.structs.replace(attached(slots=2**20, context=2**28, blocks=2**24, width=2**24), session=5))
    with pytest.raises(ReplayError, match="too little memory"):
        replay(written(tmp_path / "r", READY, Drawn(5), huge))


@pytest.mark.parametrize("repaired", [True, False])
def test_a_broken_invariant_was_broken_in_the_recording_too(repaired: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(engine: Engine, now: float) -> None:
        raise InvariantError(["nothing adds up"])

    monkeypatch.setattr(Engine, "advance", broken)
    after: list[Frame] = [Repaired(["nothing adds up"]), Drawn(6)] if repaired else []
    report = replay(written(tmp_path / "r", READY, Drawn(5), joined(), admitted(), Turn(1.0), *after, READY, Drawn(7)))
    assert (report.difference is None) is repaired
    assert repaired or "breaks an invariant and the recording does not: nothing adds up" in (report.difference or "")


def test_a_replay_of_nothing(tmp_path: Path) -> None:
    assert replay(written(tmp_path / "r")) == ReplayReport()
