"""launch.py with a process of tests.support that breaks: PAGEWIRE_TEST_PROCESS says which package, `worker` unless it is set."""

import os
import sys
from collections.abc import Sequence
from typing import Any

import msgspec

import launcher.replay
import launcher.start
from launcher.cli import main
from launcher.replay import Replay
from launcher.specs import ProcessSpec, cluster_specs


def specs(*arguments: Any) -> list[ProcessSpec]:
    return broken(cluster_specs(*arguments))


def broken(found: Sequence[ProcessSpec]) -> list[ProcessSpec]:
    package = os.environ.get("PAGEWIRE_TEST_PROCESS", "worker")
    return [msgspec.structs.replace(spec, package=f"tests.support.broken_{package}") if spec.package == package else spec for spec in found]


class BrokenReplay(Replay):
    def specs(self) -> Sequence[ProcessSpec]:
        return broken(super().specs())


if __name__ == "__main__":
    setattr(launcher.start, "cluster_specs", specs)  # noqa: B010
    setattr(launcher.replay, "Replay", BrokenReplay)  # noqa: B010
    sys.exit(main())
