"""What the kernel says of a process, and what it did not say."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.waiting import wait_until
from transport.vitals import BUSY, FADES_SECONDS, IDLE, OVER, TICK_SECONDS, Vitals

PID = 7


class Proc:
    """A /proc with one process, whose threads are in these states and which has used `ticks` of a processor's time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "self").mkdir()
        (folder / "self" / "stat").touch()

    def say(self, states: str, ticks: int) -> None:
        for number, state in enumerate(states):
            self._write(self.folder / str(PID) / "task" / str(PID + number), state, 0)
        self._write(self.folder / str(PID), states[0], ticks)

    def _write(self, folder: Path, state: str, ticks: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(f"{PID} (a ) name) {state} 1 1 1 0 -1 0 0 0 0 0 {ticks} 1 0 0 20 0 1 0 5")


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_who_gets_much_of_a_processor_or_wants_some_is_busy_for_a_while(proc: Proc) -> None:
    vitals = Vitals(PID, proc.folder)
    proc.say("SS", 100)
    assert vitals.look(0.0) == IDLE
    proc.say("SS", 101)  # a heartbeat
    assert vitals.look(0.2) == IDLE
    proc.say("SS", 101 + round(0.2 / TICK_SECONDS))
    assert [vitals.look(now) for now in (0.4, 0.6, 0.5 + FADES_SECONDS)] == [BUSY, BUSY, IDLE]
    for state in "RD":
        proc.say("S" + state, 200)
        assert vitals.look(10.0) == BUSY
        proc.say("SS", 200)
        assert vitals.look(20.0) == IDLE


def test_who_looks_often_sees_work_too(proc: Proc) -> None:
    vitals, found = Vitals(PID, proc.folder), set()
    for turn in range(100):
        proc.say("SS", 100 + round(turn * 0.005 / 2 / TICK_SECONDS))  # half of a processor's time
        found.add((turn * 0.005 >= 0.2, vitals.look(10.0 + turn * 0.005)))
    assert (True, BUSY) in found
    assert (True, IDLE) not in found


def test_who_was_stopped_has_no_share_in_what_it_did_before(proc: Proc) -> None:
    vitals = Vitals(PID, proc.folder)
    proc.say("RR", 100)
    assert vitals.look(0.0) == BUSY
    proc.say("TT", 150)
    assert vitals.look(0.2) == OVER
    proc.say("Zt", 150)
    assert vitals.look(0.4) == OVER
    proc.say("ZS", 150)  # its main thread alone has ended
    assert vitals.look(1.6) == IDLE


def test_who_is_not_there_is_over_and_where_nobody_tells_everybody_works(proc: Proc, tmp_path: Path) -> None:
    assert Vitals(8, proc.folder).look(0.0) == OVER
    assert Vitals(8, tmp_path / "none").look(0.0) == BUSY


@pytest.fixture
def worker() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that computes, and nothing else."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        yield process
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_real_process(worker: "subprocess.Popen[bytes]") -> None:
    vitals = Vitals(worker.pid)
    wait_until(lambda: vitals.look(0.0) == BUSY)  # once it has been started and read in
    worker.kill()
    worker.wait()
    assert vitals.look(0.1) == OVER
