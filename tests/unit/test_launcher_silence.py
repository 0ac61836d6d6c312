"""Whose silence counts: not that of processes which a stopped supervisor could not hear."""

from pathlib import Path

from launcher.child import Child
from launcher.supervisor import PAUSE_SECONDS, Supervisor
from tests.support.fake_cluster import Events, FakeOffers, Setup
from tests.support.supervised import spec


class Heard(Child):
    """Lives, and was last heard from at `heard`."""

    killed = False

    def __init__(self, supervisor: Supervisor, heard: float) -> None:
        super().__init__(supervisor._serving.specs[0], supervisor._audience.line)
        self._heard, self._was_ready = heard, True
        supervisor._children = {self.name: self}

    @property
    def running(self) -> bool:
        return True

    def kill(self) -> None:
        self.killed = True


def tick(supervisor: Supervisor, now: float) -> None:
    """As far as silence is concerned, with no message yet."""
    supervisor._forgive(now)
    supervisor._kill_hung(now)


def test_nobody_is_killed_for_what_a_stopped_supervisor_did_not_hear(run_dir: Path) -> None:
    """It may be Ctrl-Z, a frozen container or a virtual machine that was moved: what they said meanwhile is read a moment later."""
    setup = Setup(run_dir=str(run_dir), processes=[spec(run_dir, "worker0")])
    supervisor = Supervisor(FakeOffers(setup), run_dir, Events(), hang_timeout=10.0)
    child = Heard(supervisor, 100.0)
    tick(supervisor, 100.5)
    tick(supervisor, 500.0)
    assert not child.killed
    assert child.state(500.0, False).age == 0.5
    now = 500.0
    while not child.killed and now < 600.0:
        now += PAUSE_SECONDS / 2
        tick(supervisor, now)
    assert now == 510.0  # its own silence counts as ever
