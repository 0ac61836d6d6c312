"""Runs a Supervisor over fake processes, as a process of its own (`python -m tests.support.fake_cluster`): one JSON event per output line."""

import json
import sys
from pathlib import Path

import msgspec

from launcher.specs import ProcessSpec
from launcher.supervisor import Supervisor
from messages.cluster import ClusterState
from tests.support.fake_process import FakeArgs


class FakeSpec(msgspec.Struct, frozen=True, kw_only=True):
    args: FakeArgs
    stage: int


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    run_dir: str
    processes: list[FakeSpec]
    startup_timeout: float = 20.0
    hang_timeout: float = 60.0


class Events:
    """The audience: everything it hears goes to standard output."""

    def state(self, state: ClusterState) -> None:
        self._tell("state", state.reason or "ready")

    def ready(self, state: ClusterState) -> None:
        self._tell("ready", state.model)

    def line(self, text: str) -> None:
        self._tell("line", text)

    def failed(self, message: str) -> None:
        self._tell("failed", message)

    def _tell(self, kind: str, text: str) -> None:
        sys.stdout.write(json.dumps([kind, text]) + "\n")
        sys.stdout.flush()


def main() -> int:
    setup = msgspec.json.decode(sys.argv[1], type=Setup)
    specs = [ProcessSpec(package="tests.support.fake_process", args=fake.args, stage=fake.stage) for fake in setup.processes]
    return Supervisor(specs, Path(setup.run_dir), "fake", Events(), setup.startup_timeout, setup.hang_timeout).run()


if __name__ == "__main__":
    sys.exit(main())
