"""The scheduler process alone, over its real sockets; the test plays supervisor, tokenizers and worker."""

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from messages.admit import Abort, Admit
from messages.cluster import LOADING, READY, STALLED, STOPPING, ClusterState, Hung, ProcessReport, ProcessState, ToSupervisor
from messages.plan import ToWorker
from messages.sampling import SamplingParams
from messages.tokens import FINISH_ERROR, FromScheduler, Refused, Tokens
from scheduler.deadlines import FADING, FLOOR, STOPPED, TIMES
from tests.support.null_answers import reference
from tests.support.null_worker import NullWorker
from tests.support.scheduler_bench import Client, arguments, attached, prompt_of
from transport.columns import pack_i32
from transport.lifetime import ARGUMENTS_VARIABLE
from transport.reports import CLUSTER_FEED, SUPERVISOR
from transport.sockets import Feed, Inbox, Outbox

ROOT = Path(__file__).resolve().parent.parent.parent
CONTEXT, VOCAB = 40, 29
RUN = "import runpy, sys; runpy.run_module('scheduler', run_name='__main__'); assert 'torch' not in sys.modules; print('no torch')"


class Neighbours:
    """All inboxes around one scheduler process. `until(condition)` plays the worker and keeps what the tokenizers get."""

    def __init__(self, run_dir: Path, **changes: object) -> None:
        self.args = arguments(run_dir=str(run_dir), **changes)
        self.context: zmq.Context[Any] = zmq.Context()
        self.reports: list[ProcessReport] = []
        self.hung: list[Hung] = []
        self.clients = {name: Client() for name in self.args.tokenizers}
        self.worker = NullWorker(attached())
        self.worker_works = True
        self._supervisor: Inbox[ToSupervisor] = Inbox(self.context, run_dir, SUPERVISOR, ToSupervisor)
        self._feed = Feed(self.context, run_dir, CLUSTER_FEED)
        self._worker: Inbox[ToWorker] = Inbox(self.context, run_dir, "worker0", ToWorker)
        self._tokenizers: dict[str, Inbox[FromScheduler]] = {name: Inbox(self.context, run_dir, name, FromScheduler) for name in self.args.tokenizers}
        self.scheduler = self._outbox()
        self.process = self._start()

    def _outbox(self) -> Outbox:
        return Outbox(self.context, self.args.run_dir, "scheduler", linger_ms=200)

    def _start(self) -> "subprocess.Popen[str]":
        environment = os.environ | {ARGUMENTS_VARIABLE: msgspec.json.encode(self.args).decode(), "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            [sys.executable, "-P", "-c", RUN], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.args.run_dir
        )

    def kill(self) -> None:
        """SIGKILL; the worker and the tokenizers live on, and so does what is on its way to them. What is sent from now on waits for the next."""
        self.process.kill()
        self.process.communicate(timeout=30)
        self.scheduler.close()  # its connection may not know yet that nobody is there, and would take what is sent next with it
        self.scheduler = self._outbox()
        self.until(lambda: not self._worker.wait(0.2))
        self._turn()  # it may have told the tokenizers of a step and died before it planned the next

    def restart(self) -> None:
        self.args = msgspec.structs.replace(self.args, incarnation=self.args.incarnation + 1)
        self.process = self._start()

    def until(self, condition: Callable[[], bool], seconds: float = 30.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"timed out; last report {self.reports[-1:]}"
            self._turn()

    def _turn(self) -> None:
        self._worker.wait(0.005)
        for message in self._worker.drain():
            if self.worker_works:
                self.worker.receive(message)
        while self.worker_works and self.worker.pending:
            self.scheduler.send(self.worker.deliver())
        for name, inbox in self._tokenizers.items():
            for answer in inbox.drain():
                assert isinstance(answer, Tokens | Refused)
                self.clients[name].receive(answer)
        for told in self._supervisor.drain():
            if isinstance(told, Hung):
                self.hung.append(told)
            else:
                self.reports.append(told)

    def phase(self, phase: str) -> Callable[[], bool]:
        return lambda: bool(self.reports) and self.reports[-1].phase == phase

    def gauge(self, name: str, value: float) -> Callable[[], bool]:
        return lambda: bool(self.reports) and self.reports[-1].gauges.get(name) == value

    def counter(self, name: str, value: float) -> Callable[[], bool]:
        return lambda: bool(self.reports) and self.reports[-1].counters.get(name) == value

    def admit(
        self, keys: list[int], prompt: list[int], max_tokens: int | None = 6, tokenizer: str = "tokenizer0", resumed: list[bytes] | None = None
    ) -> None:
        """`resumed`: what was delivered of each key before."""
        self.scheduler.send(
            Admit(
                tokenizer=tokenizer, keys=keys, seeds=keys, prompt=pack_i32(prompt), sampling=SamplingParams(), end_ids=[3], max_tokens=max_tokens,
                resumed=resumed or [],
            )
        )  # fmt: skip

    def publish(self, **incarnations: int) -> None:
        self.tell([ProcessState(name=name, incarnation=number, pid=1, phase=READY) for name, number in incarnations.items()])

    def introduce(self, **incarnations: int) -> None:
        """Published until the scheduler has looked twice since: what it knows last is all it goes by."""
        before = len(self.reports)

        def looked() -> bool:
            self.publish(**incarnations)
            return len({report.counters.get("seconds") for report in self.reports[before:]}) > 2

        self.until(looked)

    def tell(self, processes: list[ProcessState]) -> None:
        self._feed.publish(ClusterState(ready=True, phase=READY, reason="", model="m", started=0.0, processes=processes))

    def terminate(self) -> str:
        """SIGTERM, and what the process printed; its exit code must be 0."""
        self.process.send_signal(signal.SIGTERM)
        self.until(lambda: self.process.poll() is not None)
        self._turn()
        out, err = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, err
        assert "Traceback" not in err
        assert "no torch" in out
        return err

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=30)
        for inbox in self._tokenizers.values():
            inbox.close()
        self._supervisor.close()
        self._worker.close()
        self._feed.close()
        self.scheduler.close()
        self.context.term()


@pytest.fixture
def start(run_dir: Path) -> Iterator[Callable[..., Neighbours]]:
    made: list[Neighbours] = []

    def begin(**changes: object) -> Neighbours:
        made.append(Neighbours(run_dir, **changes))
        return made[-1]

    yield begin
    for neighbours in made:
        neighbours.close()


def assert_served(client: Client, key: int, prompt: list[int], max_tokens: int | None = 6) -> None:
    assert (client.tokens[key], client.finish[key]) == reference(key, prompt, max_tokens, [3], CONTEXT, VOCAB)


def test_phases_facts_service_and_exit(start: Callable[..., Neighbours]) -> None:
    n = start()
    n.worker_works = False
    n.until(n.phase(LOADING))
    n.admit([1, 2], prompt_of(17))
    n.worker_works = True
    n.until(n.phase(READY))
    n.admit([3], prompt_of(20, 1), None, "tokenizer1")
    n.admit([4], prompt_of(60))
    n.until(lambda: set(n.clients["tokenizer0"].finish) == {1, 2} and 3 in n.clients["tokenizer1"].finish and 4 in n.clients["tokenizer0"].refused)
    for key in (1, 2):
        assert_served(n.clients["tokenizer0"], key, prompt_of(17))
    assert_served(n.clients["tokenizer1"], 3, prompt_of(20, 1), None)
    n.until(lambda: n.reports[-1].counters.get("accepted") == 3 and n.gauge("slots_used", 0)() and n.gauge("running", 0)())
    last = n.reports[-1]
    assert last.facts == {"context": CONTEXT, "wanted_context": CONTEXT, "blocks": 24, "block_size": 4, "slots": 4}
    gauges = dict(last.gauges)
    assert gauges.pop("blocks_free") + gauges.pop("blocks_cached") == 24
    assert gauges == {
        "running": 0,
        "waiting": 0,
        "waiting_tokens": 0,
        "live_tokens": 0,
        "slots": 4,
        "slots_used": 0,
        "blocks": 24,
        "blocks_used": 0,
        "blocks_retiring": 0,
        "awaited_seconds": 0,
        "deadline_seconds": 0,
    }
    counters = last.counters
    assert counters["accepted"] == counters["finished_stop"] + counters["finished_length"] + counters["cancelled"] + counters["errors"]
    assert counters["refused"] == 1
    n.terminate()
    n.until(n.phase(STOPPING))


MALFORMED = {
    "empty": b"",
    "a byte that is never used": b"\xc1",
    "text": b"garbage " * 100,
    "fields missing": msgspec.msgpack.encode({"type": "admit"}),
    "unknown tag": msgspec.msgpack.encode({"type": "nonsense", "keys": [1]}),
    "cut short": msgspec.msgpack.encode(Abort([1]))[:-1],
    "negative key": msgspec.msgpack.encode({"type": "abort", "keys": [-1]}),
    "not a map": msgspec.msgpack.encode(b"x"),
    "too deep": b"\x91" * 100_000,
    "odd column": msgspec.msgpack.encode(Admit(tokenizer="tokenizer0", keys=[9], seeds=[9], prompt=b"abc", sampling=SamplingParams(), end_ids=[])),
    "unknown tokenizer": msgspec.msgpack.encode(
        Admit(tokenizer="nobody", keys=[9], seeds=[9], prompt=b"abcd", sampling=SamplingParams(), end_ids=[])
    ),
}


def test_malformed_frames_are_counted_and_harm_nobody(start: Callable[..., Neighbours]) -> None:
    n = start()
    n.until(n.phase(READY))
    n.admit([99], prompt_of(12), 20)
    for key, frame in enumerate(MALFORMED.values()):
        n.scheduler.send_frame(frame)
        n.admit([key], prompt_of(5))
    keys = set(range(len(MALFORMED)))
    n.until(lambda: set(n.clients["tokenizer0"].finish) == keys | {99})
    assert_served(n.clients["tokenizer0"], 99, prompt_of(12), 20)
    for key in keys:
        assert_served(n.clients["tokenizer0"], key, prompt_of(5))
    n.until(n.counter("bad_frames", len(MALFORMED)))
    assert "dropped a bad frame" in n.terminate()


def test_a_killed_scheduler_adopts_the_worker_and_goes_on_where_it_was(start: Callable[..., Neighbours]) -> None:
    """What is sent before it is there waits for it; another session begins; no token comes twice or is another one."""
    n = start()
    n.until(n.phase(READY))
    keys, prompt, client = [1, 2, 4], prompt_of(9), n.clients["tokenizer0"]
    n.admit(keys, prompt, 25)
    n.until(lambda: all(len(client.tokens.get(key, [])) > 2 for key in keys))
    session = n.worker._session
    n.worker_works = False
    n.kill()
    live = [key for key in keys if key not in client.finish]
    assert live
    n.admit(live, prompt, 25, resumed=[pack_i32(client.tokens[key]) for key in live])
    n.restart()
    n.worker_works = True
    n.until(lambda: set(client.finish) == set(keys))
    assert n.worker._session != session
    for key in keys:
        assert_served(client, key, prompt, 25)
    n.until(n.gauge("slots_used", 0))
    n.terminate()


def test_a_restarted_worker_is_attached_again_and_nothing_is_seen(start: Callable[..., Neighbours]) -> None:
    n = start()
    n.until(n.phase(READY))
    for key in range(1, 9):
        n.admit([key], prompt_of(key, key), 20)
    n.until(lambda: len(n.worker.plans) > 4)
    n.worker.restart()
    n.until(lambda: len(n.clients["tokenizer0"].finish) == 8)
    for key in range(1, 9):
        assert_served(n.clients["tokenizer0"], key, prompt_of(key, key), 20)


def test_a_silent_worker_makes_the_scheduler_stalled_and_a_result_ready(start: Callable[..., Neighbours]) -> None:
    n = start(step_deadline=1.0)
    n.until(n.phase(READY))
    n.worker_works = False
    n.admit([1], prompt_of(5))
    n.until(n.phase(STALLED))
    n.until(lambda: bool(n.hung))
    assert (n.hung[0].name, n.hung[0].incarnation) == ("worker0", 0)
    n.worker_works = True

    def served() -> bool:
        if n.hung[-1].incarnation == n.worker.geometry.incarnation:  # again, if this machine is so busy that this process has been silent, too
            n.worker.restart()
        return 1 in n.clients["tokenizer0"].finish and n.phase(READY)()

    n.until(served)
    assert_served(n.clients["tokenizer0"], 1, prompt_of(5))
    assert [hung.incarnation for hung in n.hung] == list(range(len(n.hung))), "said once of each"


@pytest.fixture
def spinning() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that is at work and says nothing."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield process
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_worker_that_is_slow_is_not_taken_for_hung_and_a_stopped_one_is(
    start: Callable[..., Neighbours], spinning: "subprocess.Popen[bytes]"
) -> None:
    """Both have no heartbeats, as on a machine where nobody gets the processor for seconds."""
    n = start(step_deadline=60.0)
    n.until(n.phase(READY))

    def finish(key: int) -> None:
        n.until(lambda: key in n.clients["tokenizer0"].finish)

    def serve(key: int) -> float:
        began = time.monotonic()
        n.admit([key], prompt_of(5, key), 1)
        finish(key)
        return time.monotonic() - began

    def told(name: str, least: float) -> Callable[[], bool]:
        """The cluster's state is told until this gauge is at least so much, or the worker is given up."""

        def seen() -> bool:
            n.tell([ProcessState(name="worker0", incarnation=n.worker.geometry.incarnation, pid=spinning.pid, phase=STALLED)])
            return bool(n.hung) or n.reports[-1].gauges[name] >= least

        return seen

    slowest, key = serve(1), 1
    for _ in range(3):
        while slowest >= STOPPED / TIMES:  # a step may take TIMES as long as one that was slow before
            key += 1
            slowest = max(serve(key), FADING * slowest)
        n.until(n.gauge("awaited_seconds", 0))
        n.worker_works = False
        began, key = time.monotonic(), key + 1
        n.admit([key], prompt_of(5, key), 1)  # a step like those before
        n.until(told("awaited_seconds", STOPPED + 1.0))
        if not n.hung:
            break
        assert n.hung.pop().reason.startswith(f"no result for {FLOOR:.0f} s of a step")  # so much time has passed on a busy machine: once more
        began = time.monotonic()
        n.worker.restart()
        n.worker_works = True
        finish(key)
        slowest = max(slowest, time.monotonic() - began)
    else:
        raise AssertionError("it is not seen in time that a step is awaited")
    spinning.send_signal(signal.SIGSTOP)
    limits = [STOPPED] if time.monotonic() - began < FLOOR - 2.0 else [STOPPED, FLOOR]  # the latter if it was stopped very late
    n.until(told("awaited_seconds", math.inf))
    assert n.hung[0].reason.startswith(tuple(f"no result for {limit:.0f} s of a step" for limit in limits))


def test_a_restarted_tokenizer_loses_its_sequences(start: Callable[..., Neighbours]) -> None:
    n = start()
    n.until(n.phase(READY))
    n.introduce(tokenizer0=1, tokenizer1=1, frontend0=1)
    n.worker_works = False
    n.admit([1], prompt_of(5), 20)
    n.admit([2], prompt_of(5), 20, "tokenizer1")
    n.until(n.counter("accepted", 2))
    n.publish(tokenizer0=1, tokenizer1=2, frontend0=7)
    n.until(n.counter("cancelled", 1))
    n.worker.restart()
    n.worker_works = True
    n.until(lambda: 1 in n.clients["tokenizer0"].finish)
    assert n.clients["tokenizer1"].finish == {}
    n.until(n.gauge("blocks_used", 0))


def test_abort_over_the_wire_frees_everything(start: Callable[..., Neighbours]) -> None:
    n = start()
    n.until(n.phase(READY))
    n.worker_works = False
    n.admit([1, 2, 3, 4, 5, 6], prompt_of(5), None)
    n.until(n.counter("accepted", 6))
    n.scheduler.send(Abort([1, 2, 3, 4, 5, 6, 7]))
    n.worker.restart()
    n.worker_works = True
    n.until(lambda: n.counter("cancelled", 6)() and n.gauge("slots_used", 0)() and n.gauge("waiting", 0)())
    assert n.clients["tokenizer0"].finish == {}


def test_sigterm_lets_running_sequences_finish(start: Callable[..., Neighbours]) -> None:
    n = start(drain_seconds=60.0)
    n.until(n.phase(READY))
    n.worker_works = False
    n.admit([1], prompt_of(5))
    n.until(n.gauge("running", 1))
    n.process.send_signal(signal.SIGTERM)
    n.until(n.phase(STOPPING))
    n.admit([2], prompt_of(5))
    n.until(lambda: 2 in n.clients["tokenizer0"].refused)
    assert n.clients["tokenizer0"].refused[2].status == 503
    n.worker.restart()
    n.worker_works = True
    n.terminate()
    n.until(lambda: 1 in n.clients["tokenizer0"].finish)
    assert_served(n.clients["tokenizer0"], 1, prompt_of(5))


def test_sigterm_with_a_dead_worker_answers_503_and_exits(start: Callable[..., Neighbours]) -> None:
    n = start(drain_seconds=0.3)
    n.until(n.phase(READY))
    n.worker_works = False
    n.admit([1], prompt_of(5))
    n.until(n.gauge("running", 1))
    n.terminate()
    client = n.clients["tokenizer0"]
    n.until(lambda: 1 in client.finish)
    assert (client.finish, client.problems[1].status) == ({1: FINISH_ERROR}, 503)


def test_without_arguments_it_says_how_to_start() -> None:
    environment = {name: value for name, value in os.environ.items() if name != ARGUMENTS_VARIABLE} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-P", "-m", "scheduler"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "launch.py" in done.stderr
