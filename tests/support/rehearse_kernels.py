"""A worker's rehearsal for an H200, without one: prints the kernels in the order of need and compiles those of a first prompt and token.

Kernels of other steps that it did not foresee are printed behind "late".

Run as a script, without TRITON_INTERPRET.
"""

from pathlib import Path
from typing import Any

import torch
import triton

from kernels.launch import instead
from tests.support.engines import worker_args
from worker.load import load_shape
from worker.resident.load import trial_engine
from worker.resident.rehearsal import META, Launches, NoDevice

HOPPER = 9, 0
STEPS = [
    (tokens, decodes, draws)
    for tokens in (1, 2, 5, 17, 40, 130, 700, 2000)
    for decodes in (0, 1, 2, 3, 7, 16)
    for draws in (1, 2, 3, 5, 15, 16)
    if decodes <= draws <= tokens + decodes
]
"""Prompt tokens, decode rows and draws of mixed steps."""


def main() -> None:
    triton.runtime.driver.set_active(NoDevice(HOPPER))  # type: ignore[arg-type]
    shape: dict[str, Any] = {"model_shape": "qwen3-0.6b", "dummy_weights": True, "device": "cuda", "max_slots": 16, "max_context": 4096}
    args, launches = worker_args(Path(), **shape), Launches()
    with torch.inference_mode(), instead(launches.note):
        found = load_shape(args, META)
        engine = trial_engine(found.decoder, found.kernels, args, found.kv_dtype, META, found.positions, args.max_step_tokens)
        engine.begin()
        first = len(launches.kinds)
        engine.rehearse()
        known = len(launches.kinds)
        for tokens, decodes, draws in STEPS:
            for filtered in (False, True):
                engine.dry_run(min(tokens, args.max_step_tokens), decodes, filtered, draws)
    for number, (kernel, compilation) in enumerate(launches.kinds.values()):
        print(f"late {kernel}" if number >= known else kernel, flush=True)
        if number < first:
            compilation()


if __name__ == "__main__":
    main()
