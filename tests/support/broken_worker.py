"""A worker that breaks once: `python -m tests.support.broken_worker` with PAGEWIRE_TEST_BREAK=HOW:STEP:FILE; FILE is made when it is done.

HOW, before plan STEP of the process: `error` (the engine says that its device failed), `memory` (none is left for that step), and on a GPU
`assert` (an assertion of a kernel fails) and `address` (a block table that leads outside all memory).
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

import worker.load
from messages.plan import StepPlan
from worker.__main__ import main
from worker.engine import DeviceError, StepError
from worker.load import load_engine

LEFT = 1 << 20
"""Bytes of a GPU that `memory` leaves to the worker."""


class Breaking:
    """Stands before an engine's `submit` and `reset`."""

    def __init__(self, engine: Any, how: str, step: int, done: Path) -> None:
        self._engine, self._how, self._step, self._done = engine, how, step, done
        self._submit, self._reset = engine.submit, engine.reset
        self._plans = 0
        engine.submit, engine.reset = self.submit, self.reset

    def submit(self, plan: StepPlan, queued: float = 0.0) -> None:
        self._plans += 1
        if self._plans >= self._step and not self._done.exists() and (self._how != "memory" or plan.prefill is not None):
            self._done.touch()
            getattr(self, f"_{self._how}")()
        self._submit(plan, queued)

    def reset(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.set_per_process_memory_fraction(1.0)
        self._reset()

    def _error(self) -> None:
        raise DeviceError("CUDA error: an illegal memory access was encountered")

    def _memory(self) -> None:
        if not torch.cuda.is_available():
            self._engine._reader.limit(self._engine.max_step_tokens // 2)
            raise StepError(f"no memory for it; from now on steps have at most {self._engine.max_step_tokens} tokens: out of memory")
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + LEFT) / torch.cuda.mem_get_info()[1])

    def _assert(self) -> None:
        torch.zeros(1, device="cuda")[torch.tensor([7], device="cuda")]

    def _address(self) -> None:
        self._engine._arena.table.fill_(2**30)


def load(*arguments: Any, **more: Any) -> Any:
    how, step, done = os.environ["PAGEWIRE_TEST_BREAK"].split(":", 2)
    engine = load_engine(*arguments, **more)
    Breaking(engine, how, int(step), Path(done))
    return engine


if __name__ == "__main__":
    worker.load.load_engine = load
    sys.exit(main())
