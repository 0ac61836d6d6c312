"""A supervisor process over fake children, for tests of the supervisor."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from messages.cluster import ClusterState, Command, CommandReply, ProcessState, StatusQuery
from tests.support.fake_cluster import FakeSpec, Setup
from tests.support.fake_process import FakeArgs
from transport import command as transport

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 30.0


def ask(run_dir: Path, command: Command) -> CommandReply:
    """With more patience than people have."""
    return transport.ask(run_dir, command, LIMIT)


class Fake:
    """A supervisor process over fake children."""

    def __init__(self, process: "subprocess.Popen[str]", run_dir: Path) -> None:
        self.process = process
        self.run_dir = run_dir
        self.events: list[tuple[str, str]] = []

    def until(self, kind: str) -> str:
        """The text of the next event of this kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append((event[0], event[1]))
            if event[0] == kind:
                return str(event[1])
        raise AssertionError(f"no event {kind}: {self.events}")

    def end(self) -> int:
        """Wait for the end, keeping the remaining events; the exit code."""
        with contextlib.suppress(AssertionError):
            self.until("nothing")
        return self.process.wait(timeout=LIMIT)

    def state(self) -> ClusterState:
        answer = ask(self.run_dir, StatusQuery())
        assert isinstance(answer, ClusterState)
        return answer

    def one(self, name: str) -> ProcessState:
        return next(process for process in self.state().processes if process.name == name)

    def wait_for(self, condition: Callable[[ClusterState], bool]) -> ClusterState:
        limit = time.monotonic() + LIMIT
        while not condition(state := self.state()):
            assert time.monotonic() < limit, state
            time.sleep(0.02)
        return state


@contextlib.contextmanager
def fake(run_dir: Path, *processes: FakeSpec, **more: Any) -> Iterator[Fake]:
    """A supervisor over these; `more`: other fields of its Setup."""
    setup = Setup(run_dir=str(run_dir), processes=list(processes), **more)
    command = [sys.executable, "-m", "tests.support.fake_cluster", msgspec.json.encode(setup).decode()]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        running = Fake(process, run_dir)
        try:
            yield running
        finally:
            process.kill()


def spec(run_dir: Path, name: str, stage: int = 0, **behaviour: Any) -> FakeSpec:
    return FakeSpec(args=FakeArgs(name=name, incarnation=0, run_dir=str(run_dir), **behaviour), stage=stage)
