"""What a measurement comes to: percentiles, rates and error counts, as JSON and as a table."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from launcher.load import Measurement, Outcome

PERCENTILES = (50, 90, 99)
COLUMNS = ("load", "ok", "err", "tok/s", "tok/s/stream", "TTFT p50", "p90", "p99", "gap p50", "p90", "p99", "E2E p50")


def percentile(values: Sequence[float], share: float) -> float:
    """The `share` percentile (0..100) with linear interpolation between ranks. Raises ValueError for no values."""
    if not values:
        raise ValueError("no values")
    import numpy as np

    return float(np.percentile(values, share))


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """p50, p90 and p99 in milliseconds; None for no values."""
    if not seconds:
        return None
    return {f"p{share}": round(percentile(seconds, share) * 1000, 2) for share in PERCENTILES}


def summarise(load: str, measurement: "Measurement") -> dict[str, Any]:
    """The figures of one run. Latencies (ms) and rates (tokens a second) are of the requests that succeeded.

    `total_tok_s` counts generated tokens over the whole run, prefill time included; `stream_tok_s` is the median over requests of tokens
    after the first by the time from first to last text.
    """
    good = [outcome for outcome in measurement.outcomes if outcome.error is None]
    rates = [rate for outcome in good if (rate := _decode_rate(outcome)) is not None]
    tokens = sum(outcome.tokens for outcome in good)
    return {
        "load": load,
        "requests": len(measurement.outcomes),
        "ok": len(good),
        "errors": dict(sorted(Counter(outcome.error for outcome in measurement.outcomes if outcome.error is not None).items())),
        "seconds": round(measurement.seconds, 3),
        "prompt_tokens": sum(outcome.prompt_tokens for outcome in good),
        "completion_tokens": tokens,
        "total_tok_s": round(tokens / measurement.seconds, 2) if measurement.seconds > 0 else 0.0,
        "stream_tok_s": round(percentile(rates, 50), 2) if rates else None,
        "ttft_ms": percentiles([outcome.first - outcome.due for outcome in good if outcome.first is not None]),
        "inter_token_ms": percentiles([gap for outcome in good for gap in outcome.gaps]),
        "e2e_ms": percentiles([outcome.ended - outcome.due for outcome in good]),
    }


def _decode_rate(outcome: "Outcome") -> float | None:
    if outcome.first is None or outcome.last is None or outcome.last <= outcome.first or outcome.tokens < 2:
        return None
    return (outcome.tokens - 1) / (outcome.last - outcome.first)


def table(results: Sequence[dict[str, Any]]) -> str:
    """One line per run; times in milliseconds."""
    return aligned([COLUMNS, *(_row(result) for result in results)])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of equally many cells in columns, each aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def milliseconds(found: dict[str, float] | None, names: Sequence[str]) -> list[str]:
    """Cells of the percentiles of these names; dashes when there are none."""
    return ["-"] * len(names) if found is None else [f"{found[name]:.0f}" if found[name] >= 100 else f"{found[name]:.1f}" for name in names]


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    def times(name: str) -> list[str]:
        return milliseconds(result[name], [f"p{share}" for share in PERCENTILES])

    errors = result["requests"] - result["ok"]
    speed = "-" if result["stream_tok_s"] is None else f"{result['stream_tok_s']:.1f}"
    counts = (result["load"], str(result["ok"]), str(errors), f"{result['total_tok_s']:.1f}", speed)
    return (*counts, *times("ttft_ms"), *times("inter_token_ms"), times("e2e_ms")[0])
