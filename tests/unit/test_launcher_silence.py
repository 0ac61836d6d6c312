"""Time in which the supervisor did not run counts for nothing: not as others' silence, and not for any limit."""

from pathlib import Path

import pytest

from launcher.child import LAST_SECONDS, Child
from launcher.specs import ProcessSpec
from launcher.supervisor import Supervisor
from messages.cluster import DEAD, READY, ProcessReport
from tests.support.fake_cluster import Events, FakeOffers, Setup
from tests.support.supervised import spec
from transport.clock import Clock

STOPPED_SECONDS = 400.0


class Heard(Child):
    """Lives, and does nothing by itself."""

    killed = False

    @property
    def running(self) -> bool:
        return True

    def kill(self) -> None:
        self.killed = True

    def terminate(self) -> None:
        self.killed = True

    def reap(self, now: float) -> bool:
        return False

    def says(self, phase: str, detail: str = "") -> None:
        self.note(ProcessReport(name=self.name, incarnation=self.incarnation, pid=1, phase=phase, detail=detail))


class Nobody:
    """In place of all sockets."""

    def receive(self) -> None:
        return None

    def publish(self, state: object) -> None:
        pass


class Bench:
    """A supervisor of one process, and the time that a clock tells it."""

    def __init__(self, run_dir: Path, startup_timeout: float = 600.0, hang_timeout: float = 60.0, grace: float = 25.0) -> None:
        setup = Setup(run_dir=str(run_dir), processes=[spec(run_dir, "worker0")])
        self.time = 100.0
        self.supervisor = Supervisor(FakeOffers(setup), run_dir, Events(), startup_timeout, hang_timeout, grace)
        self.supervisor._clock = clock = Clock(lambda: self.time)
        self.supervisor._begun = clock.now
        known: ProcessSpec = self.supervisor._serving.specs[0]
        self.child = self.supervisor._children["worker0"] = Heard(known, lambda line: None, lambda: clock.now)
        self.child._heard = clock.now

    def tick(self, seconds: float) -> None:
        self.time += seconds
        nobody = Nobody()
        self.supervisor._tick([], nobody, nobody, -1)  # type: ignore[arg-type]

    def ticks(self, seconds: float) -> None:
        """As often as ever, for so long."""
        for _ in range(round(2 * seconds)):
            self.tick(0.5)


def test_nobody_is_killed_for_what_a_stopped_supervisor_did_not_hear(run_dir: Path) -> None:
    """It may be Ctrl-Z, a frozen container or a virtual machine that was moved: what they said meanwhile is read a moment later."""
    bench = Bench(run_dir, hang_timeout=10.0)
    bench.child.says(READY)
    bench.tick(0.5)
    bench.tick(STOPPED_SECONDS)
    assert not bench.child.killed
    assert bench.child.state(bench.supervisor._clock.now, False).age == 1.5
    bench.ticks(8.5)
    assert not bench.child.killed
    bench.tick(0.5)
    assert bench.child.killed, "its own silence counts as ever"


def test_a_start_has_its_time_however_long_nothing_ran(run_dir: Path) -> None:
    bench = Bench(run_dir, startup_timeout=10.0)
    bench.tick(STOPPED_SECONDS)
    bench.ticks(9.0)
    assert bench.supervisor._stop_seconds is None
    bench.tick(0.5)
    assert bench.supervisor._stop_seconds is not None


@pytest.mark.parametrize("drained", [False, True])
def test_a_drain_has_its_time_however_long_nothing_ran(run_dir: Path, drained: bool) -> None:
    bench = Bench(run_dir, grace=10.0)
    supervisor = bench.supervisor
    supervisor._was_ready = True
    if not drained:
        supervisor._left = lambda now: None  # type: ignore[method-assign]
    bench.tick(0.5)
    supervisor._on_signal(15, None)
    bench.tick(0.5)
    bench.tick(STOPPED_SECONDS)
    bench.ticks(8.5)
    assert (supervisor._stop_seconds is not None) == drained
    bench.ticks(1.0)
    assert supervisor._stop_seconds is not None
    assert supervisor._drained == drained


def test_who_has_said_why_it_ends_gets_time_for_it_but_not_for_ever(run_dir: Path) -> None:
    bench = Bench(run_dir)
    bench.supervisor._was_ready = True
    bench.child.says(READY)
    bench.tick(0.5)
    bench.child.says(DEAD, "the device failed")
    assert not bench.child.kill_incarnation(bench.child.incarnation), "it is not to be taken for hung"
    bench.ticks(LAST_SECONDS)
    assert not bench.child.killed
    bench.tick(0.5)
    assert bench.child.killed
    assert bench.child.cause == "the device failed"

