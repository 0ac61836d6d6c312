"""On a GPU: prints the kernels that steps of usual kinds and the graphs made ahead still compile when the rehearsal is over, with what they
are compiled for. Run with an empty TRITON_CACHE_DIR."""

import queue
from pathlib import Path
from typing import Any

import triton

from messages.result import StepResult
from tests.support.engines import SilentReporter, worker_args
from tests.support.plans import Chunk, Planner, Row
from worker.compilers import Compilers
from worker.load import load_engine

LENGTHS = (11, 300, 1, 40)


def main() -> None:
    def heard(*, src: Any, cache_hit: bool, **more: Any) -> None:
        if not cache_hit:
            print(src.name, dict(src.signature), dict(src.attrs), dict(src.constants), flush=True)

    shape: dict[str, Any] = {"model_shape": "qwen3-0.6b", "dummy_weights": True, "device": "cuda"}
    shape |= {"max_step_tokens": 1024, "max_context": 2048, "max_slots": 64}
    args = worker_args(Path(), threads=0, **shape)
    compilers = Compilers(args)
    compilers.ended(60.0)
    triton.knobs.compilation.listener = heard
    engine: Any = load_engine(args, SilentReporter(), compilers=compilers)
    results: queue.SimpleQueue[StepResult] = queue.SimpleQueue()
    engine.start(results.put)
    engine.reset()
    planner, plans = Planner(), []
    for slot, length in enumerate(LENGTHS):
        drawn: dict[str, Any] = {"temperature": 0.8, "top_k": 20} if slot == 2 else {}
        row = Row(slot=slot, prompt=range(length), blocks=range(slot * 32, slot * 32 + 32), **drawn)
        plans.append(planner.plan(admit=[row], chunks=[Chunk(slot, 0, row.prompt, True)], decode=range(slot)))
        plans += [planner.plan(decode=range(slot + 1)) for _ in range(3)]
    for plan in plans:
        engine.submit(plan)
    for _ in plans:
        results.get(timeout=60)
    while engine.idle():
        pass
    engine.close()
    compilers.close()


if __name__ == "__main__":
    main()
