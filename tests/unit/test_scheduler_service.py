"""The process around the engine, in this process: what the contract test cannot bring about over sockets."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from messages.admit import Admit, FromTokenizerProc
from messages.cluster import DEAD, LOADING, READY, STALLED, STOPPING, ClusterState, ProcessState
from messages.live import LIVE_FEED, LiveView
from messages.poison import Poison
from messages.result import FromWorker, WorkerReady
from messages.sampling import SamplingParams
from scheduler import __main__ as main_module
from scheduler.args import SchedulerArgs
from scheduler.deadlines import FLOOR, STOPPED, Work
from scheduler.errors import InvariantError
from scheduler.recording import Reader
from scheduler.service import MOST_REPAIRS, REPAIR_WINDOW_SECONDS, TICK_SECONDS, Service, Sessions
from tests.support.scheduler_bench import arguments, attached
from transport.columns import pack_i32
from transport.lifetime import Lifetime, Stopping
from transport.reports import SUPERVISOR
from transport.sockets import Inbox, Outbox, Subscription
from transport.vitals import BUSY, IDLE, OVER


class StubLifetime(Lifetime):
    """Without signal handlers."""

    def __init__(self) -> None:
        self.stopping = Stopping()


@pytest.fixture(autouse=True)
def hearers(run_dir: Path) -> Iterator[None]:
    """Inboxes for all the scheduler speaks to, so that it need not linger over what it has said when it ends."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    inboxes = [Inbox[object](context, run_dir, name, object) for name in (SUPERVISOR, "worker0", "tokenizer0", "tokenizer1")]
    yield
    for inbox in inboxes:
        inbox.close()
    context.term()


@pytest.fixture
def service(run_dir: Path, hearers: None) -> Iterator[Service]:
    made = Service(arguments(run_dir=str(run_dir), drain_seconds=0.1), StubLifetime())
    yield made
    made._lifetime.stopping.set()
    made.run()


def take_in(service: Service, *messages: FromTokenizerProc | FromWorker) -> None:
    """In one turn, or as many as it takes until all have come."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    outbox = Outbox(context, service._args.run_dir, "scheduler", linger_ms=30_000)
    for message in messages:
        outbox.send(message)
    outbox.close()
    context.term()
    heard = 0

    def drained() -> list[FromTokenizerProc | FromWorker]:
        nonlocal heard
        found = Inbox.drain(service._inbox)
        heard += len(found)
        return found

    limit = time.monotonic() + 30
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service._inbox, "drain", drained)
        while heard < len(messages):
            assert time.monotonic() < limit
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
    assert service._over == {}


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


@pytest.mark.parametrize("stop_seconds", [None, 5.0], ids=["dies", "is told to end"])
def test_only_a_death_is_warned_of(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, stop_seconds: float | None
) -> None:
    for phase in (READY, DEAD):
        process = ProcessState(name="tokenizer0", incarnation=1, pid=1, phase=phase)
        state = ClusterState(ready=True, phase=READY, reason="", model="m", started=0.0, processes=[process], stop_seconds=stop_seconds)
        monkeypatch.setattr(service._cluster, "latest", lambda state=state: state)
        service._watch_cluster()
    assert ("tokenizer0 has died" in caplog.text) == (stop_seconds is None)


@pytest.mark.parametrize(("looks", "limit"), [(OVER, STOPPED), (IDLE, FLOOR), (BUSY, FLOOR)])
def test_the_kernel_is_asked_about_a_worker_that_says_nothing(service: Service, monkeypatch: pytest.MonkeyPatch, looks: str, limit: float) -> None:
    ready(service)
    deadlines, step = service._engine.deadlines, Work(2, 0, 4)
    deadlines.add(step, 0.1)
    worker = ProcessState(name="worker0", incarnation=0, pid=7, phase=STALLED)
    state = ClusterState(ready=True, phase=STALLED, reason="", model="m", started=0.0, processes=[worker])
    monkeypatch.setattr(service._cluster, "latest", lambda: state)
    for _ in range(2):
        service._watch_cluster()
    assert service._vitals.pid == 7
    monkeypatch.setattr(service._vitals, "look", lambda now: looks)
    service._watch_worker(time.monotonic())
    assert deadlines.of(step) == limit


def test_phases(service: Service) -> None:
    assert service._phase_now(0.0)[0] == LOADING
    take_in(service, WorkerReady(worker="worker0"))
    assert service._engine._attaching is not None
    take_in(service, msgspec.structs.replace(attached(), session=service._engine._attaching), admit(1, "tokenizer0"))
    assert service._phase_now(time.monotonic())[0] == READY
    stalled = STALLED, "no result for 60 s of a step with 2 prompt tokens and 0 decode rows"
    assert service._phase_now(time.monotonic() + 100) == stalled
    for _ in range(2):
        service._watch_worker(time.monotonic() + 100)
    assert service._phase_now(time.monotonic()) == stalled, "it is to be killed"
    service._lifetime.stopping.set()
    assert service._phase_now(0.0)[0] == STOPPING


def test_a_scheduler_that_did_not_run_blames_nobody(service: Service) -> None:
    ready(service)
    take_in(service, admit(1, "tokenizer0"))
    service._beat -= 100
    service._turn()
    assert service._engine._excused == service._beat
    assert service._engine.overdue(service._beat + 59) is None


def test_it_runs_until_asked_to_stop_and_ends_what_is_left(run_dir: Path) -> None:
    service = Service(arguments(run_dir=str(run_dir), drain_seconds=0.1), StubLifetime())
    take_in(service, admit(1, "tokenizer0"))
    threading.Timer(0.3, service._lifetime.stopping.set).start()
    service.run()
    assert service._engine.idle
    assert service._engine.tally.counts["errors"] == 1


def ready(service: Service) -> None:
    take_in(service, WorkerReady(worker="worker0"))
    assert service._engine._attaching is not None
    take_in(service, msgspec.structs.replace(attached(), session=service._engine._attaching))


def test_a_broken_invariant_in_a_step_is_repaired(service: Service) -> None:
    ready(service)
    session = service._engine.session
    assert session is not None
    session.pool.blocks.free = 0  # the ledger disagrees with itself
    session.pool.blocks.retiring = 24
    session.slots._free.clear()
    take_in(service, admit(1, "tokenizer0"))
    assert service._engine.tally.counts["invariant_violations"] == 0  # it only waits
    session.slots._free.append(0)
    session.pool.room = lambda number: 5  # type: ignore[method-assign]
    take_in(service, admit(2, "tokenizer0"))
    assert service._engine.tally.counts["invariant_violations"] == 1
    assert set(service._engine._live) == {1, 2}
    service._engine.check()


def test_a_broken_invariant_in_a_message_is_repaired_and_the_next_message_heard(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = service._engine.receive

    def spoilt(message: FromTokenizerProc | FromWorker, now: float) -> None:
        if isinstance(message, WorkerReady):
            raise InvariantError(["spoilt"])
        receive(message, now)

    monkeypatch.setattr(service._engine, "receive", spoilt)
    take_in(service, WorkerReady(worker="worker0"), admit(2, "tokenizer0"))
    assert service._engine.tally.counts["invariant_violations"] == 1
    assert set(service._engine._live) == {2}


@pytest.mark.parametrize("self_check", [False, True])
def test_an_idle_scheduler_checks_itself_when_asked_to(run_dir: Path, self_check: bool) -> None:
    service = Service(arguments(run_dir=str(run_dir), self_check=self_check), StubLifetime())
    try:
        ready(service)
        service._self_check()
        assert service._engine.session is not None
        service._engine.session.pool.unused += 1
        service._self_check()
        assert service._engine.tally.counts["invariant_violations"] == 0  # nothing has run since
        service._engine.tally.add("steps")
        service._self_check()
        assert service._engine.tally.counts["invariant_violations"] == int(self_check)
    finally:
        service._lifetime.stopping.set()
        service.run()


def test_it_records_when_asked_to(run_dir: Path, tmp_path: Path) -> None:
    service = Service(arguments(run_dir=str(run_dir), record=str(tmp_path / "recording"), drain_seconds=0.1), StubLifetime())
    ready(service)
    take_in(service, admit(1, "tokenizer0"))
    service._lifetime.stopping.set()
    service.run()
    with Reader(tmp_path / "recording") as reader:
        assert len(list(reader)) > 3


def test_the_process_reads_its_arguments_and_runs(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[SchedulerArgs] = []
    args = arguments(run_dir=str(run_dir))
    monkeypatch.setattr(main_module, "read_arguments", lambda kind: args)
    monkeypatch.setattr(main_module, "set_up_logging", lambda args: None)
    monkeypatch.setattr(main_module, "Lifetime", lambda args: StubLifetime())

    def run(service: Service) -> None:
        ran.append(service._args)
        service._close()

    monkeypatch.setattr(Service, "run", run)
    main_module.main()
    assert ran == [args]


@pytest.mark.parametrize(("context", "told"), [(40, []), (4000, ["the KV memory holds 48 tokens: that is the context now, instead of 4000"])])
def test_the_geometry_is_told_once(service: Service, caplog: pytest.LogCaptureFixture, context: int, told: list[str]) -> None:
    take_in(service, WorkerReady(worker="worker0"))
    assert service._engine._attaching is not None
    take_in(service, msgspec.structs.replace(attached(context=context), session=service._engine._attaching))
    for _ in range(2):
        service._report(time.monotonic())
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == told
    assert service._facts == service._engine.geometry


def test_an_error_of_our_own_is_repaired_but_not_for_ever(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    take_in(service, admit(1, "tokenizer0"))

    def fail(now: float) -> None:
        raise OverflowError("too large")

    with monkeypatch.context() as patch:
        patch.setattr(service._engine, "advance", fail)
        for _ in range(MOST_REPAIRS):
            service._turn()
        assert set(service._engine._live) == {1}
        with pytest.raises(OverflowError):
            service._turn()
    assert service._engine.tally.counts["invariant_violations"] == MOST_REPAIRS
    service._repairs = [time.monotonic() - 2 * REPAIR_WINDOW_SECONDS] * MOST_REPAIRS
    service._repair(OverflowError("later"))
    service._engine.check()


def test_the_steps_of_a_poison_request_are_kept_and_it_says_where(
    service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    monkeypatch.setattr(service._engine, "take_poison", lambda: [Poison(attached=attached(), plans=[], answered=0, why="it died")])
    service._turn()
    path = Path(service._args.run_dir) / "poison-1.plan"
    assert b"it died" in path.read_bytes()
    assert str(path) in caplog.text
    monkeypatch.setattr("scheduler.service.keep_poison", lambda folder, poison: None)
    service._turn()
    assert caplog.text.count(str(path)) == 1
    assert caplog.text.count("a request was found to end the worker") == 2
    monkeypatch.undo()


def test_views_are_made_for_who_listens(service: Service) -> None:
    listener: Subscription[LiveView] = Subscription(service._context, service._args.run_dir, LIVE_FEED, LiveView)
    heard: LiveView | None = None
    limit = time.monotonic() + 60
    while heard is None and time.monotonic() < limit:
        service._turn()
        heard = listener.latest()
    listener.close()
    assert heard is not None
    assert heard.slots == 0


def test_a_turn_waits_no_longer_than_to_the_next_deadline(service: Service) -> None:
    assert service._patience() == TICK_SECONDS
    take_in(service, msgspec.structs.replace(admit(1, "tokenizer0"), timeout=1000.0))
    assert service._patience() == TICK_SECONDS
    take_in(service, msgspec.structs.replace(admit(2, "tokenizer0"), timeout=TICK_SECONDS / 2))
    assert 0.0 <= service._patience() <= TICK_SECONDS / 2
    while 2 in service._engine._live:
        service._turn()
    assert set(service._engine._live) == {1}
    assert service._engine.tally.counts["expired"] == 1
