"""`bench scheduler`: CPU time of one scheduler step (plan, result and both messages), and that it does not grow with what has been."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.loop import VOCAB, Loop
from simulator.simulation import Machine
from transport.columns import I32

TARGETS_US = {256: 150.0, 1024: 400.0}
STEADY_BYTES, CHURN_BYTES = 64, 4096
BLOCK_SIZE = 16
WARM_UP = 64
SPARE_ROWS = 8
CHURN_PROMPT = 128
GROWTH_ROWS = 64
FEW = 100
SHORT, LONG = 100, 30_000
STEP_TOKENS = 1 << 16
Watcher = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """`rows`: row counts to measure; `steps` per measurement; `run_ahead`: plans in flight.

    `growth`: also measure what must not cost: `finished` requests before, and rows of LONG tokens.
    """

    rows: list[int]
    steps: int = 1000
    run_ahead: int = 2
    growth: bool = True
    finished: int = 100_000


def measure(options: BenchOptions, watch: Watcher) -> dict[str, Any]:
    """{"runs": [...], "growth": [...]}; `watch` is told what is being measured. Times are microseconds of CPU."""
    runs = []
    for rows in options.rows:
        for cached in (True, False):
            for load, prepare in (("steady", _steady), ("churn", _churn)):
                watch(f"{rows} rows, {load}, prefix cache {_switch(cached)}")
                runs.append({"rows": rows, "load": load, "prefix_cache": cached, **_cost(prepare(options, rows, cached), options.steps, rows, load)})
    return {"runs": runs, "growth": list(_growth(options, watch)) if options.growth else []}


def _switch(on: bool) -> str:
    return "on" if on else "off"


Step = Callable[[], float]
Ready = tuple[Loop, Step]


def _machine(options: BenchOptions, rows: int, cached: bool, longest: int) -> Machine:
    """Room for `rows` rows of `longest` tokens, a fifth more for the cache, and slots for rows whose last plan is still in flight."""
    blocks = rows * -(-longest // BLOCK_SIZE)
    return Machine(
        slots=rows + SPARE_ROWS,
        blocks=blocks + blocks // 5 + 64,
        block_size=BLOCK_SIZE,
        max_step_tokens=STEP_TOKENS,
        chunk_tokens=STEP_TOKENS,
        context=longest,
        run_ahead=options.run_ahead,
        prefix_cache=cached,
        max_queue=max(1024, 2 * rows),
        max_queue_tokens=1 << 40,
    )


def _prompts() -> Callable[[int], I32]:
    chance = np.random.default_rng(0)
    return lambda length: chance.integers(0, VOCAB - 1, length, dtype=np.int32)


def _steady(options: BenchOptions, rows: int, cached: bool, length: int = SHORT) -> Ready:
    """All rows decode and none ends. Their lengths differ, so that in every step one row in BLOCK_SIZE needs a block."""
    prompt, tokens = _prompts(), options.steps + 8 * WARM_UP
    loop = Loop(_machine(options, rows, cached, length + BLOCK_SIZE + tokens + rows))
    for row in range(rows):
        loop.send(prompt(length + row % BLOCK_SIZE), tokens + rows)
    _settle(loop)
    return loop, loop.turn


def _churn(options: BenchOptions, rows: int, cached: bool, finished: int = 0) -> Ready:
    """In every step one row ends at its length and another is admitted: each lives for as many steps as there are rows.

    Before it begins, `finished` other requests come and go.
    """
    prompt = _prompts()
    loop = Loop(_machine(options, rows, cached, CHURN_PROMPT + BLOCK_SIZE + 2 * rows + 8))
    while loop.finished < finished:
        for _ in range(min(rows, finished - loop.finished)):
            loop.send(prompt(BLOCK_SIZE + 1), 1)
        while not loop.engine.idle or loop.waits:
            loop.turn()
    for row in range(rows):
        loop.send(prompt(CHURN_PROMPT + row % BLOCK_SIZE), row + 2)
    _settle(loop)
    number = rows

    def step() -> float:
        nonlocal number
        number += 1
        loop.send(prompt(CHURN_PROMPT + number % BLOCK_SIZE), rows)
        return loop.turn()

    return loop, step


def _settle(loop: Loop) -> None:
    """Turn until no request waits."""
    loop.turn()
    while loop.engine.gauges()["waiting"]:
        loop.turn()


def _cost(ready: Ready, steps: int, rows: int, load: str) -> dict[str, Any]:
    loop, step = ready
    for _ in range(WARM_UP):
        step()
    loop.plan_bytes()
    ended = loop.finished
    times = np.asarray([step() for _ in range(steps)])
    sizes, bare = loop.plan_bytes()
    target = TARGETS_US.get(rows)
    median = float(np.median(times))
    limit = STEADY_BYTES if load == "steady" else CHURN_BYTES
    return {
        "steps": steps,
        "finished_per_step": round((loop.finished - ended) / steps, 3),
        "step_us": {"median": round(median, 1), "mean": round(float(times.mean()), 1), "p99": round(float(np.percentile(times, 99)), 1)},
        "target_us": target,
        "plan_bytes": {"median": int(np.median(sizes)), "max": max(sizes), "median_without_new_blocks": int(np.median(bare))},
        "target_bytes": limit,
        "time_ok": None if target is None else median <= target,
        "bytes_ok": int(np.median(sizes)) <= limit,
    }


def _growth(options: BenchOptions, watch: Watcher) -> Iterator[dict[str, Any]]:
    """What a step costs after FEW and many finished requests, and with rows of SHORT and LONG tokens."""
    costs = []
    for number in (FEW, options.finished):
        watch(f"steps after {number:,} finished requests")
        _, step = _churn(options, GROWTH_ROWS, True, number)
        costs.append(_median(step, options.steps))
    yield _comparison("finished requests", (FEW, options.finished), costs)
    costs = []
    for length in (SHORT, LONG):
        watch(f"steps with rows of {length:,} tokens")
        _, step = _steady(options, GROWTH_ROWS, True, length)
        costs.append(_median(step, options.steps))
    yield _comparison("tokens per row", (SHORT, LONG), costs)


def _median(step: Step, steps: int) -> float:
    for _ in range(WARM_UP):
        step()
    return float(np.median([step() for _ in range(steps)]))


def _comparison(what: str, sizes: tuple[int, int], costs: list[float]) -> dict[str, Any]:
    return {
        "what": what,
        "rows": GROWTH_ROWS,
        "small": sizes[0],
        "large": sizes[1],
        "small_us": round(costs[0], 1),
        "large_us": round(costs[1], 1),
        "ratio": round(costs[1] / costs[0], 3) if costs[0] else None,
    }
