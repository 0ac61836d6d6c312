"""launch.py with a worker that makes tokens up at a given pace, with more slots and blocks than a test's machine could compute."""

import os
import sys
from typing import Any

import launcher.paced_worker
import launcher.start
from launcher.cli import main
from launcher.paced_worker import PacedArgs
from launcher.specs import ProcessSpec, cluster_specs

MODULE = "tests.support.launch_paced"
BLOCKS = 100_000
STEP_SECONDS = "PACED_STEP_SECONDS"
"""In the environment: the pace, 0.1 without it."""
VOCAB = 312


def specs(*arguments: Any) -> list[ProcessSpec]:
    return [paced(spec) if spec.package == "worker" else spec for spec in cluster_specs(*arguments)]


def paced(spec: ProcessSpec) -> ProcessSpec:
    told: Any = spec.args
    common = {name: getattr(told, name) for name in ("name", "incarnation", "run_dir")}
    sizes = {"max_slots": told.max_slots, "max_step_tokens": told.max_step_tokens}
    args = PacedArgs(**common, vocab=VOCAB, step_seconds=float(os.environ.get(STEP_SECONDS, "0.1")), **sizes)
    return ProcessSpec(package=MODULE, args=args, stage=spec.stage)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        setattr(launcher.start, "cluster_specs", specs)  # noqa: B010
        sys.exit(main())
    setattr(launcher.paced_worker, "BLOCKS", BLOCKS)  # noqa: B010
    sys.exit(launcher.paced_worker.main())
