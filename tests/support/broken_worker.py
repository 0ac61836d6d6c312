"""A worker that breaks, for tests alone: `python -m tests.support.broken_worker` with PAGEWIRE_TEST_BREAK=HOW:WHEN:FILE.

HOW `kill` (a segmentation fault) and `stop` (SIGSTOP, as if it hung) are done whenever the prompt chunks of a row have all the token ids of
WHEN, which are joined by commas, one after the other; each time a line is added to FILE. Any other HOW is done once, before plan number WHEN of
the process; then FILE is made.

These are `sleep` (for ever, while heartbeats go on), `error` (the engine says that its device failed, and from then on nothing of the process can be
taken down in order), `memory` (none is left for that step),
and on a GPU `assert` (an assertion of a kernel fails) and `address` (a block table that leads outside all memory).
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import worker.load
from messages.plan import Prefills, StepPlan
from transport.columns import pack_i32, view_i32
from worker.__main__ import main
from worker.engine import DeviceError, StepError
from worker.grammars import Grammars
from worker.load import load_engine

SIGNALS = {"kill": signal.SIGSEGV, "stop": signal.SIGSTOP}
LEFT = 1 << 20
"""Bytes of a GPU that `memory` leaves to the worker."""


class Poisoned:
    """Stands before an engine's `submit`, and ends the process, or stops it, at a row that has `tokens` in its prompt."""

    def __init__(self, engine: Any, signum: signal.Signals, tokens: list[int], done: Path) -> None:
        self._signal, self._tokens, self._done = signum, pack_i32(tokens), done
        self._submit, self._rows = engine.submit, dict[int, bytes]()
        engine.submit = self.submit

    def submit(self, plan: StepPlan, queued: float = 0.0) -> None:
        if plan.admit is not None:
            for slot in view_i32(plan.admit.slot).tolist():
                self._rows[slot] = b""
        if plan.prefill is not None and self._has_tokens(plan.prefill):
            with self._done.open("a") as file:
                file.write(f"{os.getpid()}\n")
            os.kill(os.getpid(), self._signal)
        self._submit(plan, queued)

    def _has_tokens(self, prefill: Prefills) -> bool:
        place, found = 0, False
        for slot, count in zip(view_i32(prefill.slot).tolist(), view_i32(prefill.count).tolist(), strict=True):
            self._rows[slot] += prefill.tokens[4 * place : 4 * (place + count)]
            place += count
            found |= self._tokens in self._rows[slot]
        return found


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
        if self._engine.cache.k.device.type == "cuda":
            torch.cuda.set_per_process_memory_fraction(1.0)
        self._reset()

    def _sleep(self, *_: object) -> None:
        time.sleep(3600)

    def _error(self) -> None:
        self._engine.close = self._sleep
        setattr(Grammars, "close", self._sleep)  # noqa: B010
        raise DeviceError("CUDA error: an illegal memory access was encountered")

    def _memory(self) -> None:
        if self._engine.cache.k.device.type == "cpu":
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
    how, when, done = os.environ["PAGEWIRE_TEST_BREAK"].split(":", 2)
    engine = load_engine(*arguments, **more)
    if how in SIGNALS:
        Poisoned(engine, SIGNALS[how], [int(token) for token in when.split(",")], Path(done))
    else:
        Breaking(engine, how, int(when), Path(done))
    return engine


if __name__ == "__main__":
    worker.load.load_engine = load
    sys.exit(main())
