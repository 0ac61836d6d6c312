"""The supervisor alone over its real sockets: start-up, deaths, silence, stopping, and that nothing outlives it."""

import os
import signal
import time
from pathlib import Path

import msgspec
import pytest
import zmq

from messages.cluster import ClusterState, Hung, ProcessReport, StopCommand, Stopping
from tests.support.processes import is_gone
from tests.support.supervised import LIMIT, ask, fake, spec
from transport.reports import CLUSTER_FEED, SUPERVISOR
from transport.sockets import Outbox, Subscription, address


def test_ready_then_status_then_stop_in_order(run_dir: Path) -> None:
    with fake(run_dir, spec(run_dir, "worker0", 3), spec(run_dir, "frontend0", 0), spec(run_dir, "scheduler", 2)) as cluster:
        cluster.until("ready")
        state = cluster.wait_for(lambda state: state.ready)
        assert (state.phase, state.reason, state.model) == ("ready", "", "fake")
        assert {(p.name, p.incarnation, p.phase, p.restarts, p.facts["context"]) for p in state.processes} == {
            ("worker0", 1, "ready", 0, 64),
            ("frontend0", 1, "ready", 0, 64),
            ("scheduler", 1, "ready", 0, 64),
        }
        assert ask(run_dir, StopCommand(deadline=5.0)) == Stopping(cluster.process.pid)
        assert cluster.end() == 0
        ends = [text for kind, text in cluster.events if kind == "line" and text.endswith("ends")]
        assert ends == ["frontend0 ends", "scheduler ends", "worker0 ends"]
        assert all(is_gone(process.pid) for process in state.processes)


def test_the_feed_tells_phases_and_readiness(run_dir: Path) -> None:
    loading = "worker0 loading weights 43 %"
    with fake(run_dir, spec(run_dir, "worker0", held=True)) as cluster:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        feed: Subscription[ClusterState] = Subscription(context, run_dir, CLUSTER_FEED, ClusterState)
        reasons: list[str] = []
        limit = time.monotonic() + LIMIT
        while "" not in reasons and time.monotonic() < limit:
            state = feed.latest()
            if state is not None and state.reason not in reasons:
                assert state.ready == (state.reason == "")
                reasons.append(state.reason)
            if loading in reasons:
                (run_dir / "go").touch()
            time.sleep(0.02)
        feed.close()
        context.term()
        cluster.until("ready")
        assert reasons[-1] == ""
        assert loading in reasons
        cluster.process.send_signal(signal.SIGTERM)
        assert cluster.end() == 0


def test_a_death_while_starting_ends_the_cluster_with_the_last_lines(run_dir: Path) -> None:
    with fake(run_dir, spec(run_dir, "worker0", fail_starts=(1,)), spec(run_dir, "frontend0")) as cluster:
        message = cluster.until("failed")
        assert message.startswith("worker0 ended while starting (exit code 3)")
        assert "RuntimeError: the weights are not there" in message
        assert cluster.end() == 1


def test_not_ready_in_time_ends_the_cluster(run_dir: Path) -> None:
    with fake(run_dir, spec(run_dir, "worker0", slow=30), startup_timeout=2.0) as cluster:
        assert cluster.until("failed") in [f"not ready after 2 s: worker0 {phase}" for phase in ("starting", "loading weights 43 %")]
        assert cluster.end() == 1


def test_a_killed_process_comes_back_with_the_next_incarnation(run_dir: Path) -> None:
    with fake(run_dir, spec(run_dir, "worker0"), spec(run_dir, "scheduler")) as cluster:
        cluster.until("ready")
        before = cluster.one("worker0")
        os.kill(before.pid, signal.SIGKILL)
        while not cluster.until("state").startswith("worker0 died: killed by SIGKILL"):
            pass
        cluster.wait_for(lambda state: state.ready)
        after = cluster.one("worker0")
        assert (after.incarnation, after.restarts) == (2, 1)
        assert after.pid != before.pid
        assert (before.past, before.counters, after.past, after.counters) == ({}, {"starts": 1.0}, {"starts": 1.0}, {"starts": 1.0})
        assert after.cpu_seconds > before.cpu_seconds > 0
        assert after.memory_bytes > 1 << 20
        assert cluster.one("scheduler").incarnation == 1
        cluster.process.send_signal(signal.SIGINT)
        assert cluster.end() == 0


def test_a_process_that_keeps_dying_ends_the_cluster(run_dir: Path) -> None:
    dying = spec(run_dir, "worker0", fail_starts=(3, 4, 5, 6, 7))
    with fake(run_dir, dying, spec(run_dir, "scheduler"), longest_pause=0.2) as cluster:
        cluster.until("ready")
        os.kill(cluster.one("worker0").pid, signal.SIGKILL)
        cluster.wait_for(lambda state: any(process.incarnation == 2 for process in state.processes) and state.ready)
        os.kill(cluster.one("worker0").pid, signal.SIGKILL)
        assert cluster.until("failed").startswith("worker0 keeps dying (exit code 3); giving up")
        assert cluster.end() == 1


def test_a_process_that_is_said_to_hang_is_killed_and_started_again(run_dir: Path) -> None:
    with fake(run_dir, spec(run_dir, "worker0"), spec(run_dir, "scheduler")) as cluster:
        cluster.until("ready")
        hung = cluster.one("worker0").pid
        os.kill(hung, signal.SIGSTOP)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        reports = Outbox(context, run_dir, SUPERVISOR, linger_ms=10_000)
        for name, incarnation in (("stranger", 1), ("scheduler", 2), ("worker0", 1), ("worker0", 1)):
            reports.send(Hung(name=name, incarnation=incarnation, reason="no result for 10 s"))
        reports.close()
        context.term()
        cluster.wait_for(lambda state: any(process.incarnation == 2 for process in state.processes) and state.ready)
        assert is_gone(hung)
        assert (cluster.one("scheduler").incarnation, cluster.one("worker0").incarnation) == (1, 2)
        cluster.process.send_signal(signal.SIGTERM)
        assert cluster.end() == 0


def test_a_stopped_process_makes_the_cluster_not_ready_until_it_goes_on(run_dir: Path) -> None:
    with fake(run_dir, spec(run_dir, "worker0"), spec(run_dir, "scheduler")) as cluster:
        cluster.until("ready")
        pid = cluster.one("scheduler").pid
        os.kill(pid, signal.SIGSTOP)
        state = cluster.wait_for(lambda state: not state.ready)
        assert state.phase == "stalled"
        assert state.reason.startswith("scheduler stalled: not heard from for ")
        os.kill(pid, signal.SIGCONT)
        cluster.wait_for(lambda state: state.ready)
        assert cluster.one("scheduler").incarnation == 1
        os.kill(pid, signal.SIGSTOP)  # stopping must not wait for it for ever
        ask(run_dir, StopCommand(deadline=0.5))
        assert cluster.end() == 0
        assert is_gone(pid)


def test_a_deaf_process_is_killed_at_the_deadline(run_dir: Path) -> None:
    with fake(run_dir, spec(run_dir, "frontend0", deaf=True), stage_seconds=60.0) as cluster:
        cluster.until("ready")
        began = time.monotonic()
        ask(run_dir, StopCommand(deadline=1.0))
        assert cluster.end() == 0
        assert 0.5 < time.monotonic() - began < LIMIT


def test_a_second_signal_ends_everything_at_once(run_dir: Path) -> None:
    with fake(run_dir, spec(run_dir, "frontend0", deaf=True), spec(run_dir, "worker0", 3), stage_seconds=60.0) as cluster:
        cluster.until("ready")
        began = time.monotonic()
        cluster.process.send_signal(signal.SIGTERM)
        cluster.wait_for(lambda state: state.phase == "stopping")
        cluster.process.send_signal(signal.SIGTERM)
        assert cluster.end() == 130
        assert time.monotonic() - began < LIMIT


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, "stop"])
def test_a_stop_before_it_was_ready_is_no_success(run_dir: Path, how: signal.Signals | str) -> None:
    with fake(run_dir, spec(run_dir, "worker0", slow=30)) as cluster:
        cluster.until("line")
        if isinstance(how, signal.Signals):
            cluster.process.send_signal(how)
        else:
            ask(run_dir, StopCommand(deadline=1.0))
        assert cluster.until("failed") == "stopped before it was ready"
        assert cluster.end() == (130 if isinstance(how, signal.Signals) else 1)


def test_a_hung_process_is_killed_and_started_again(run_dir: Path) -> None:
    with fake(run_dir, spec(run_dir, "worker0"), spec(run_dir, "scheduler"), hang_timeout=2.5) as cluster:
        cluster.until("ready")
        hung = cluster.one("scheduler").pid
        os.kill(hung, signal.SIGSTOP)
        cluster.wait_for(lambda state: state.ready and any(process.name == "scheduler" and process.incarnation >= 2 for process in state.processes))
        assert is_gone(hung)
        cluster.process.send_signal(signal.SIGTERM)
        assert cluster.end() == 0


def test_a_process_that_hangs_when_it_is_started_again_is_killed_too(run_dir: Path) -> None:
    """It has more time then, by what its first start took."""
    with fake(run_dir, spec(run_dir, "worker0"), spec(run_dir, "scheduler", hang_starts=(2,)), hang_timeout=2.0) as cluster:
        cluster.until("ready")
        os.kill(cluster.one("scheduler").pid, signal.SIGKILL)
        cluster.wait_for(lambda state: any(process.incarnation >= 3 for process in state.processes) and state.ready)
        cluster.process.send_signal(signal.SIGTERM)
        assert cluster.end() == 0


def test_children_end_when_the_supervisor_is_killed(run_dir: Path) -> None:
    with fake(run_dir, spec(run_dir, "frontend0", deaf=True), spec(run_dir, "worker0")) as cluster:
        cluster.until("ready")
        pids = [process.pid for process in cluster.state().processes]
        cluster.process.kill()
        limit = time.monotonic() + LIMIT
        while not all(is_gone(pid) for pid in pids):
            assert time.monotonic() < limit
            time.sleep(0.02)


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x81\xa4type\xa6report", msgspec.msgpack.encode({"type": "nonsense"})], ids=["empty", "bad", "cut", "unknown"]
)
def test_malformed_frames_change_nothing(run_dir: Path, frame: bytes) -> None:
    with fake(run_dir, spec(run_dir, "worker0")) as cluster:
        cluster.until("ready")
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        reports = Outbox(context, run_dir, SUPERVISOR, linger_ms=500)
        reports.send_frame(frame)
        for name, incarnation in (("worker0", 7), ("stranger", 1)):
            reports.send(ProcessReport(name=name, incarnation=incarnation, pid=1, phase="loading"))
        reports.close()
        control = context.socket(zmq.REQ)
        control.setsockopt(zmq.LINGER, 0)
        control.connect(address(run_dir, "control"))
        control.send(frame)
        assert control.poll(30_000)
        assert control.recv() == b""
        control.close()
        context.term()
        state = cluster.wait_for(lambda state: state.ready)
        assert [(process.name, process.incarnation) for process in state.processes] == [("worker0", 1)]
        cluster.process.send_signal(signal.SIGTERM)
        assert cluster.end() == 0
