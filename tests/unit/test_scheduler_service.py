"""The process around the engine, in this process: what the contract test cannot bring about over sockets."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from messages.admit import Admit, FromTokenizerProc
from messages.cluster import LOADING, READY, STALLED, STOPPING, ClusterState, ProcessState
from messages.result import FromWorker, WorkerReady
from messages.sampling import SamplingParams
from scheduler.service import Service, Sessions
from tests.support.scheduler_bench import arguments, attached
from transport.columns import pack_i32
from transport.lifetime import Lifetime
from transport.sockets import Outbox


class StubLifetime(Lifetime):
    """Without signal handlers."""

    def __init__(self) -> None:
        self.stopping = threading.Event()


@pytest.fixture
def service(run_dir: Path) -> Iterator[Service]:
    made = Service(arguments(run_dir=str(run_dir), drain_seconds=0.1), StubLifetime())
    yield made
    made._lifetime.stopping.set()
    made.run()


def take_in(service: Service, *messages: FromTokenizerProc | FromWorker) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    outbox = Outbox(context, service._args.run_dir, "scheduler", linger_ms=1000)
    for message in messages:
        outbox.send(message)
    outbox.close()
    context.term()
    service._turn()


def admit(key: int, tokenizer: str) -> Admit:
    return Admit(tokenizer=tokenizer, keys=[key], seeds=[key], prompt=pack_i32([1, 2]), sampling=SamplingParams(), end_ids=[])


def test_a_tokenizer_whose_queue_is_full_loses_its_sequences(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    take_in(service, WorkerReady(worker="worker0"))
    assert service._engine._attaching is not None
    take_in(service, msgspec.structs.replace(attached(), session=service._engine._attaching))
    take_in(service, admit(1, "tokenizer0"), admit(2, "tokenizer1"))
    monkeypatch.setattr(service._outboxes["tokenizer1"], "send", lambda message: False)
    take_in(service, admit(2, "tokenizer1"))
    assert set(service._engine._live) == {1}
    service._engine.check()


def test_a_worker_whose_queue_is_full_is_left_to_the_supervisor(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service._outboxes["worker0"], "send", lambda message: False)
    take_in(service, WorkerReady(worker="worker0"), admit(1, "tokenizer0"))
    assert set(service._engine._live) == {1}


def test_the_cluster_state_names_processes_that_are_not_ours(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    state = ClusterState(ready=True, phase="ready", reason="", model="m", started=0.0, processes=[])
    monkeypatch.setattr(service._cluster, "latest", lambda: state)
    service._tick = 0.0
    service._turn()
    assert service._incarnations == {}


def test_session_ids_never_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions()
    numbers = iter([5, 5, 5, 7])
    monkeypatch.setattr(sessions._random, "randrange", lambda start, stop: next(numbers))
    assert [sessions(), sessions()] == [5, 7]


def test_session_ids_are_positive_31_bits() -> None:
    sessions = Sessions()
    assert all(1 <= sessions() < 2**31 for _ in range(100))


def test_a_message_that_breaks_the_contract_is_counted(service: Service) -> None:
    take_in(service, admit(1, "nobody"))
    assert service._inbox.bad_frames == 1
    assert service._engine.idle


def test_a_restarted_tokenizer_loses_its_sequences(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    take_in(service, admit(1, "tokenizer0"), admit(2, "tokenizer1"))
    for incarnation, live in ((3, {1, 2}), (3, {1, 2}), (4, {2})):
        process = ProcessState(name="tokenizer0", incarnation=incarnation, pid=1, phase=READY)
        other = ProcessState(name="worker0", incarnation=incarnation, pid=1, phase=READY)
        state = ClusterState(ready=True, phase=READY, reason="", model="m", started=0.0, processes=[process, other])
        monkeypatch.setattr(service._cluster, "latest", lambda state=state: state)
        service._watch_cluster()
        assert set(service._engine._live) == live


def test_phases(service: Service) -> None:
    assert service._phase_now(0.0)[0] == LOADING
    take_in(service, WorkerReady(worker="worker0"))
    assert service._engine._attaching is not None
    take_in(service, msgspec.structs.replace(attached(), session=service._engine._attaching), admit(1, "tokenizer0"))
    assert service._phase_now(time.monotonic())[0] == READY
    assert service._phase_now(time.monotonic() + 100) == (STALLED, "no result from the worker for 60 s")
    service._lifetime.stopping.set()
    assert service._phase_now(0.0)[0] == STOPPING


def test_it_runs_until_asked_to_stop_and_ends_what_is_left(run_dir: Path) -> None:
    service = Service(arguments(run_dir=str(run_dir), drain_seconds=0.1), StubLifetime())
    take_in(service, admit(1, "tokenizer0"))
    threading.Timer(0.3, service._lifetime.stopping.set).start()
    service.run()
    assert service._engine.idle
    assert service._engine.tally.counts["errors"] == 1
