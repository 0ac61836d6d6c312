"""The worker process alone: the test plays the supervisor and the scheduler over its real sockets."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import psutil
import pytest
import zmq

from grammar.vocabulary_file import write_vocabulary
from messages.cluster import DEAD, READY, STOPPING, ProcessReport, ToSupervisor
from messages.plan import Attach, Prepare, Shutdown, StepPlan
from messages.result import Attached, FromWorker, Prepared, StepFailed, StepResult, WorkerReady
from tests.support.engines import tokens_of, worker_args
from tests.support.plans import Planner, Row
from tests.support.vocabularies import END, TOKENS
from transport.lifetime import ARGUMENTS_VARIABLE
from transport.sockets import Inbox, Outbox
from worker.args import WorkerArgs

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 60.0
M = TypeVar("M")


class Neighbours:
    """The supervisor's and the scheduler's inboxes, and the worker between them."""

    def __init__(self, args: WorkerArgs, package: str = "worker") -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self.supervisor: Inbox[ProcessReport] = Inbox(self._context, args.run_dir, "supervisor", ToSupervisor)
        self.scheduler: Inbox[FromWorker] = Inbox(self._context, args.run_dir, "scheduler", FromWorker)
        self.outbox = Outbox(self._context, args.run_dir, args.name)
        environment = {**os.environ, "PYTHONPATH": str(ROOT), ARGUMENTS_VARIABLE: msgspec.json.encode(args).decode()}
        self.process = subprocess.Popen([sys.executable, "-P", "-m", package], env=environment, cwd="/", stderr=subprocess.PIPE, text=True)
        self.reports: list[ProcessReport] = []

    def report(self, wanted: Callable[[ProcessReport], bool]) -> ProcessReport:
        return _await(self.supervisor, wanted, self.reports)

    def answer(self, kind: type[M]) -> M:
        """The next message of `kind`; WorkerReady in between is passed over."""
        found = _await(self.scheduler, lambda message: isinstance(message, kind) or not isinstance(message, WorkerReady), [])
        assert isinstance(found, kind), found
        return found

    def attach(self, session: int) -> Attached:
        self.outbox.send(Attach(session))
        return self.answer(Attached)

    def run(self, plan: StepPlan) -> StepResult:
        self.outbox.send(plan)
        return self.answer(StepResult)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=PATIENCE)
        for socket in (self.supervisor, self.scheduler, self.outbox):
            socket.close()
        self._context.term()


def _await(inbox: Inbox[M], wanted: Callable[[M], bool], seen: list[M]) -> M:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        inbox.wait(0.2)
        for message in inbox.drain(1):
            seen.append(message)
            if wanted(message):
                return message
    raise AssertionError(f"nothing came in {PATIENCE} s; before that: {seen[-3:]}")


@pytest.fixture(scope="module")
def neighbours(models: Path) -> Iterator[Neighbours]:
    """One process from its start (the first test) to its end (the last one)."""
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        play = Neighbours(worker_args(models / "dice-byte", Path(folder), kv_tokens=1024))
        yield play
        play.close()


@pytest.fixture
def fresh(models: Path, run_dir: Path) -> Iterator[Neighbours]:
    """A process of the test's own."""
    play = Neighbours(worker_args(models / "dice-byte", run_dir, kv_tokens=1024))
    yield play
    play.close()


def test_life(neighbours: Neighbours) -> None:
    """Loading, ready, attached, plans (two queued at once), stale sessions, bad frames, bad plans."""
    play = neighbours
    play.report(lambda report: report.phase == READY)
    details = [report.detail for report in play.reports]
    assert any(detail.startswith("loading weights") for detail in details) or any("torch" in detail for detail in details)
    assert play.answer(WorkerReady) == WorkerReady(worker="worker0", incarnation=1)
    assert play.answer(WorkerReady).worker == "worker0"

    attached = play.attach(5)
    assert attached == Attached(
        session=5, worker="worker0", blocks=64, block_size=16, max_slots=8, max_blocks_per_slot=128, max_step_tokens=512,
        context=2048, vocab=attached.vocab, incarnation=1, origin=attached.origin,
    )  # fmt: skip
    assert attached.origin is not None
    assert Path(attached.origin.model).name == "dice-byte"

    planner = Planner(5)
    row = Row(slot=2, prompt=[5] * 20, blocks=[7, 3, 1])
    play.outbox.send(planner.start(row))
    play.outbox.send(planner.plan(decode=[2]))
    play.outbox.send(planner.plan(decode=None))
    results = [play.answer(StepResult) for _ in range(3)]
    assert [result.step for result in results] == [1, 2, 3]
    assert all(len(tokens_of(result)) == 1 for result in results)

    for frame in (b"", b"\xff\x00", b"\x81\xa4type\xa4nope", msgspec.msgpack.encode(WorkerReady(worker="x")), os.urandom(5000)):
        play.outbox.send_frame(frame)
    play.outbox.send(StepPlan(session=4, step=1, decode=b"\x04"))
    play.outbox.send(StepPlan(session=6, step=1, release=b"xyz"))
    assert tokens_of(play.run(planner.plan(decode=None))) == tokens_of(results[0])
    counted = play.report(lambda report: report.counters.get("bad_frames", 0) >= 5 and report.counters["ignored_plans"] >= 2)
    assert (counted.counters["bad_frames"], counted.counters["ignored_plans"]) == (5, 2)

    bad = planner.plan(decode=[3])
    play.outbox.send(bad)
    play.outbox.send(planner.plan(decode=[2]))
    failed = play.answer(StepFailed)
    assert (failed.session, failed.step) == (5, bad.step)
    assert "not admitted" in failed.message
    assert play.answer(WorkerReady).worker == "worker0"
    assert play.attach(9).session == 9
    assert len(tokens_of(play.run(Planner(9).start(row)))) == 1


def test_attaching_again_forgets_all_slots(neighbours: Neighbours) -> None:
    play = neighbours
    row = Row(slot=0, prompt=[5], blocks=[0])
    play.attach(1)
    play.run(Planner(1).start(row))
    play.attach(2)
    play.run(Planner(2).start(row))
    play.outbox.send(StepPlan(session=2, step=2, decode=b"\x02"))
    assert play.answer(StepFailed).step == 2


def test_rows_follow_grammars_that_were_compiled_for_their_session(fresh: Neighbours, run_dir: Path) -> None:
    play = fresh
    write_vocabulary(run_dir, "tokenizer0", TOKENS.of, TOKENS.special, set(TOKENS.ends))
    session, process = 10, psutil.Process(play.process.pid)
    while not any("llguidance" in part.path for part in process.memory_maps()):  # before the first plan, whatever else is said: later streams wait
        play.attach(session := session + 1)
        assert session < 200
        time.sleep(0.3)
    row = Row(slot=2, prompt=[5] * 20, blocks=[7, 3, 1], grammar=4)
    for session in (1, 2):
        play.attach(session)
        for number, program in ((3, "start: b"), (4, 'start: "abc"')):
            play.outbox.send(Prepare(session=session - 1, grammar=number, program=program))  # of a session that is over
            play.outbox.send(Prepare(session=session, grammar=number, program=program))
            problem = "" if number == 4 else 'unknown name: "b"'
            assert play.answer(Prepared) == Prepared(session=session, grammar=number, problem=problem)
        planner = Planner(session)
        for plan in (planner.start(row), *(planner.plan(decode=[2]) for _ in range(4))):
            play.outbox.send(plan)
        ids = [token for _ in range(5) for token in tokens_of(play.answer(StepResult))]
        assert END in ids, ids
        said = ids[: ids.index(END)]
        assert b"".join(TOKENS.of[token] for token in said) == b"abc"
    play.attach(3)
    play.outbox.send(Planner(3).start(row))
    assert "a grammar that is not there" in play.answer(StepFailed).message


def test_sigterm_ends_it(neighbours: Neighbours) -> None:
    neighbours.attach(4)
    neighbours.process.send_signal(signal.SIGTERM)
    neighbours.report(lambda report: report.phase == STOPPING)
    assert neighbours.process.wait(timeout=PATIENCE) == 0


def test_keys_and_values_in_fp8(models: Path, run_dir: Path) -> None:
    """A whole process with such a cache: the same prompt in other blocks, and in a new session, gives the same tokens."""
    play = Neighbours(worker_args(models / "dice-byte", run_dir, kv_tokens=1024, kv_dtype="fp8"))
    try:
        play.attach(1)
        planner, found = Planner(1), []
        for slot, blocks in ((2, [7, 3]), (5, [1, 9])):
            tokens = tokens_of(play.run(planner.start(Row(slot=slot, prompt=[5] * 20, blocks=blocks))))
            for _ in range(3):
                tokens += tokens_of(play.run(planner.plan(decode=[slot])))
            found.append(tokens)
        assert found[0] == found[1]
        play.attach(2)
        assert tokens_of(play.run(Planner(2).start(Row(slot=0, prompt=[5] * 20, blocks=[0, 4])))) == found[0][:1]
        play.outbox.send(Shutdown())
        assert play.process.wait(timeout=PATIENCE) == 0
    finally:
        play.close()


def test_weights_that_a_cpu_does_not_take(models: Path, run_dir: Path) -> None:
    play = Neighbours(worker_args(models / "dice-byte", run_dir, weights="fp8"))
    try:
        assert "--weights fp8 needs a GPU" in play.report(lambda report: report.phase == DEAD).detail
        assert play.process.wait(timeout=PATIENCE) == 1
    finally:
        play.close()


def test_a_device_that_fails_is_told_of_before_anything_is_taken_down(models: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may last for ever: the process is not taken for hung before it has said why it ends, and ends."""
    monkeypatch.setenv("PAGEWIRE_TEST_BREAK", f"error:1:{run_dir / 'broken'}")
    play = Neighbours(worker_args(models / "dice-byte", run_dir, kv_tokens=1024), "tests.support.broken_worker")
    try:
        play.attach(1)
        play.outbox.send(Planner(1).start(Row(slot=0, prompt=[5], blocks=[0])))
        said = play.report(lambda report: report.phase == DEAD).detail
        assert said == "the device failed, the process ends and its sequences run again: CUDA error: an illegal memory access was encountered"
        assert play.process.wait(timeout=PATIENCE) == 1
        assert said in play.process.communicate(timeout=PATIENCE)[1]
    finally:
        play.close()


def test_sigterm_while_loading(fresh: Neighbours) -> None:
    fresh.report(lambda report: True)
    fresh.process.send_signal(signal.SIGTERM)
    assert fresh.process.wait(timeout=PATIENCE) == 0


def test_a_model_that_cannot_be_loaded(run_dir: Path, tmp_path: Path) -> None:
    play = Neighbours(worker_args(tmp_path / "nothing", run_dir))
    try:
        assert play.report(lambda report: report.phase == DEAD).detail
        assert play.process.wait(timeout=PATIENCE) == 1
    finally:
        play.close()
