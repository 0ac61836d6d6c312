"""launch.py with a worker of tests.support.broken_worker."""

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
    return [msgspec.structs.replace(spec, package="tests.support.broken_worker") if spec.package == "worker" else spec for spec in found]


class BrokenReplay(Replay):
    def specs(self) -> Sequence[ProcessSpec]:
        return broken(super().specs())


if __name__ == "__main__":
    setattr(launcher.start, "cluster_specs", specs)  # noqa: B010
    setattr(launcher.replay, "Replay", BrokenReplay)  # noqa: B010
    sys.exit(main())
