"""What a simulation comes to: rates, latencies, occupancy and counters, as JSON and as a table."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.simulation import Simulation
from simulator.trace import joined

PERCENTILES = (50, 90, 99)
Column = NDArray[np.float64]


def distribution(seconds: Column) -> dict[str, float] | None:
    """Mean, percentiles and maximum in milliseconds; None for no values."""
    if not seconds.size:
        return None
    marks = {f"p{share}": float(value) for share, value in zip(PERCENTILES, np.percentile(seconds, PERCENTILES), strict=True)}
    return {name: round(value * 1000, 3) for name, value in {"mean": float(seconds.mean()), **marks, "max": float(seconds.max())}.items()}


def summarise(simulation: Simulation) -> dict[str, Any]:
    """Every figure of a simulation that has run.

    `makespan_s` is from the first request sent to the last token received. Rates count over it: `prompt_tok_s` the prompt tokens of the requests,
    from the cache or computed, `generated_tok_s` the tokens delivered. `computed_tokens` are prompt tokens the worker computed, those of
    preempted rows again. `kv_use` is the share of blocks that rows hold and `kv_cached` of those only the cache keeps, weighted by time; `busy`
    the share of the makespan in which the worker computed; `hit_rate` the share of looked up prompt tokens that the prefix cache had.
    """
    clients, counts = simulation.clients, simulation.engine.tally.counts
    steps, gauges, blocks = simulation.steps.columns(), simulation.gauges.columns(), simulation.machine.blocks
    lasting = np.diff(gauges["at"], append=gauges["at"][-1:])
    makespan = max(0.0, clients.last_token - clients.first_sent)
    looked_up, hits = counts["prefix_queries"], counts["prefix_hits"]
    return {
        "requests": clients.sent,
        "sequences": clients.sequences,
        "finished": counts["finished_stop"] + counts["finished_length"],
        "cancelled": counts["cancelled"],
        "errors": counts["errors"],
        "refused": {str(status): number for status, number in sorted(clients.refusals.items())},
        "makespan_s": round(makespan, 6),
        "prompt_tokens": counts["prompt_tokens"],
        "computed_tokens": int(steps["prefill_tokens"].sum()),
        "generated_tokens": counts["generation_tokens"],
        "prompt_tok_s": _rate(counts["prompt_tokens"], makespan),
        "generated_tok_s": _rate(counts["generation_tokens"], makespan),
        "ttft_ms": distribution(joined(clients.latencies.ttft)),
        "itl_ms": distribution(joined(clients.latencies.gaps)),
        "e2e_ms": distribution(joined(clients.latencies.whole)),
        "steps": len(simulation.steps),
        "step_ms": distribution(steps["seconds"]),
        "busy": _share(float(steps["seconds"].sum()), makespan),
        "rows_per_step": _mean_max(steps["decode_rows"]),
        "waiting": _mean_max(gauges["waiting"], lasting),
        "kv_use": _mean_max(gauges["blocks_used"] / blocks, lasting),
        "kv_cached": _mean_max(gauges["blocks_cached"] / blocks, lasting),
        "hit_rate": _share(hits, looked_up),
        "preemptions": counts["preemptions"],
        "evicted_blocks": counts["evicted_blocks"],
    }


def _rate(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 3) if seconds else 0.0


def _share(part: float, whole: float) -> float:
    return round(min(1.0, part / whole), 6) if whole else 0.0


def _mean_max(values: Column, weights: Column | None = None) -> dict[str, float]:
    if not values.size:
        return {"mean": 0.0, "max": 0.0}
    weighted = weights if weights is not None and weights.any() else None
    return {"mean": round(float(np.average(values, weights=weighted)), 6), "max": round(float(values.max()), 6)}


def table(figures: dict[str, Any]) -> str:
    """The figures for people, in a few lines."""
    refused = ", ".join(f"{number} refused with {status}" for status, number in figures["refused"].items())
    ended = [f"{figures['finished']} finished", *([refused] if refused else [])]
    ended += [f"{figures[name]} {name}" for name in ("cancelled", "errors") if figures[name]]
    rows, waiting, kv, cached = (figures[name] for name in ("rows_per_step", "waiting", "kv_use", "kv_cached"))
    lines = [
        ("requests", f"{figures['requests']:,} sent; sequences: {', '.join(ended)}"),
        ("makespan", f"{figures['makespan_s']:,.3f} s, worker busy {figures['busy']:.1%}"),
        ("throughput", f"{figures['generated_tok_s']:,.1f} generated tok/s, {figures['prompt_tok_s']:,.1f} prompt tok/s"),
        ("tokens", f"{figures['prompt_tokens']:,} prompt ({figures['computed_tokens']:,} computed), {figures['generated_tokens']:,} generated"),
        ("steps", f"{figures['steps']:,}; decode rows mean {rows['mean']:.1f}, max {rows['max']:.0f}"),
        ("waiting", f"mean {waiting['mean']:.1f}, max {waiting['max']:.0f}"),
        ("KV memory", f"rows hold mean {kv['mean']:.1%}, max {kv['max']:.1%}; cache keeps mean {cached['mean']:.1%}"),
        ("prefix cache", f"hit rate {figures['hit_rate']:.1%}, {figures['evicted_blocks']:,} blocks evicted"),
        ("preemptions", f"{figures['preemptions']:,}"),
    ]
    times: list[tuple[str, ...]] = [("times in ms", "mean", "p50", "p90", "p99", "max")]
    times += [_times(label, figures[name]) for label, name in _TIMES]
    return "\n".join([*_aligned(lines), "", *_aligned(times, right=True)])


_TIMES = (("first token (TTFT)", "ttft_ms"), ("between tokens (ITL)", "itl_ms"), ("whole request", "e2e_ms"), ("step", "step_ms"))


def _times(label: str, values: dict[str, float] | None) -> tuple[str, ...]:
    cells = ["-"] * 5 if values is None else [f"{value:,.1f}" if value >= 10 else f"{value:.3f}" for value in values.values()]
    return (label, *cells)


def _aligned(rows: Sequence[tuple[str, ...]], right: bool = False) -> list[str]:
    """Columns of equal width; from the second on flushed right when `right`."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]

    def line(row: tuple[str, ...]) -> str:
        cells = zip(row[1:], widths[1:], strict=True)
        return "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) if right else cell.ljust(width) for cell, width in cells)]).rstrip()

    return [line(row) for row in rows]
