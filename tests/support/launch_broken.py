"""launch.py with a worker of tests.support.broken_worker."""

import sys
from typing import Any

import msgspec

import launcher.start
from launcher.cli import main
from launcher.specs import ProcessSpec, cluster_specs


def specs(*arguments: Any) -> list[ProcessSpec]:
    found = cluster_specs(*arguments)
    return [msgspec.structs.replace(spec, package="tests.support.broken_worker") if spec.package == "worker" else spec for spec in found]


if __name__ == "__main__":
    setattr(launcher.start, "cluster_specs", specs)  # noqa: B010
    sys.exit(main())
