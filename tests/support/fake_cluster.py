"""Runs a Supervisor over fake processes, as a process of its own (`python -m tests.support.fake_cluster`): one JSON event per output line."""

import json
import sys
from pathlib import Path

import msgspec

from launcher import child, supervisor
from launcher.ending import STAGE_SECONDS
from launcher.errors import LauncherError
from launcher.serving import Serving
from launcher.specs import ProcessSpec
from launcher.supervisor import Supervisor
from messages.change import ModelOptions
from messages.cluster import ClusterState
from tests.support.fake_process import FakeArgs


class FakeSpec(msgspec.Struct, frozen=True, kw_only=True):
    args: FakeArgs
    stage: int


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    run_dir: str
    processes: list[FakeSpec]
    startup_timeout: float = 60.0
    hang_timeout: float = 60.0
    grace: float = 20.0
    longest_pause: float = 5.0
    """Before a process that died while it started is started again."""
    stage_seconds: float = STAGE_SECONDS
    """For the first processes to end after a signal."""
    others: dict[str, list[FakeSpec]] = {}


class FakeOffers:
    """The model "fake" of a setup, and its others by their names."""

    def __init__(self, setup: Setup) -> None:
        self._models = {"fake": setup.processes, **setup.others}
        self._model = self._offered = "fake"

    def now(self) -> Serving:
        self._offered = self._model
        return self._serving(self._model)

    def offer(self, changes: ModelOptions) -> Serving:
        name = self._model if changes.model_name is msgspec.UNSET else changes.model_name
        if name not in self._models:
            raise LauncherError(f"there is no {name}")
        self._offered = name
        return self._serving(name)

    def adopt(self) -> None:
        self._model = self._offered

    def _serving(self, name: str) -> Serving:
        specs = [ProcessSpec(package="tests.support.fake_process", args=fake.args, stage=fake.stage) for fake in self._models[name]]
        return Serving(model=name, created=0, specs=specs)


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
    child.LONGEST_START_PAUSE_SECONDS = setup.longest_pause
    setattr(supervisor, "STAGE_SECONDS", setup.stage_seconds)  # noqa: B010
    return Supervisor(FakeOffers(setup), Path(setup.run_dir), Events(), setup.startup_timeout, setup.hang_timeout, setup.grace).run()


if __name__ == "__main__":
    sys.exit(main())
