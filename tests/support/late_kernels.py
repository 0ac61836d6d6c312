"""On a GPU: prints the kernels that steps of usual kinds still compile when a worker's rehearsal is over. Run with an empty TRITON_CACHE_DIR."""

import queue
from typing import Any

import triton

from kernels.compiler import Compiler
from messages.result import StepResult
from tests.support.engines import SilentReporter, worker_args
from tests.support.plans import Chunk, Planner, Row
from worker.load import load_engine

LENGTHS = (11, 300, 1, 40)


def main() -> None:
    made: list[Compiler] = []
    begin = Compiler.__init__

    def note(self: Compiler, threads: int) -> None:
        begin(self, threads)
        made.append(self)

    def heard(*, src: Any, cache_hit: bool, **more: Any) -> None:
        if not cache_hit:
            print(src.name, flush=True)

    setattr(Compiler, "__init__", note)  # noqa: B010
    shape = {"model_shape": "qwen3-0.6b", "dummy_weights": True, "device": "cuda", "max_step_tokens": 1024, "threads": 0, "max_context": 2048}
    engine: Any = load_engine(worker_args("", **shape), SilentReporter())  # type: ignore[arg-type]
    made[0].wait()
    triton.knobs.compilation.listener = heard
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
    engine.close()


if __name__ == "__main__":
    main()
