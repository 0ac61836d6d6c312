"""A worker's rehearsal for an H200, without one: prints the kernels in the order of need and compiles those of a first prompt and token.

Run as a script, without TRITON_INTERPRET.
"""

from pathlib import Path
from typing import Any

import torch
import triton

from tests.support.engines import worker_args
from worker.resident.rehearsal import NoDevice, rehearsed

HOPPER = 9, 0


def main() -> None:
    triton.runtime.driver.set_active(NoDevice(HOPPER))  # type: ignore[arg-type]
    shape: dict[str, Any] = {"model_shape": "qwen3-0.6b", "dummy_weights": True, "device": "cuda", "max_slots": 16, "max_context": 4096}
    with torch.inference_mode():
        launches, first = rehearsed(worker_args(Path(), **shape))
    for kernel, _ in launches:
        print(kernel, flush=True)
    for _, launch in launches[:first]:
        launch()


if __name__ == "__main__":
    main()
