"""What a load at some multiple of capacity came to: offered, let in, refused, and the tokens of those that were served in time."""

from collections.abc import Sequence
from typing import Any

from launcher.figures import aligned, milliseconds, percentile
from launcher.load import Outcome

REFUSED, LATE = "HTTP 429", ("HTTP 504", "stream error deadline_exceeded")
COLUMNS = ("load", "offered/s", "accepted/s", "refused/s", "late/s", "failed", "tok/s", "goodput", "of capacity", "TTFT p50", "p99", "preempted")


def rates(outcomes: Sequence[Outcome], begin: float, end: float, ttft: float) -> dict[str, Any]:
    """Of what happened between two times of the clock, a second: tokens count when their request ends, requests when they were due.

    `goodput_tok_s` counts the tokens of requests that ended well, with their first token within `ttft` seconds. Times to the first token (ms) are
    of all that ended well. `failed` counts, and is nobody's wish.
    """
    seconds = end - begin
    due = [outcome for outcome in outcomes if begin <= outcome.due < end]
    ended = [outcome for outcome in outcomes if outcome.error is None and begin <= outcome.ended < end]
    refused, late = (sum(outcome.error in names for outcome in due) for names in ((REFUSED,), LATE))
    times = [outcome.first - outcome.due for outcome in due if outcome.error is None and outcome.first is not None]
    good = sum(outcome.tokens for outcome in ended if outcome.first is not None and outcome.first - outcome.due <= ttft)
    return {
        "requests": len(due),
        "offered_s": round(len(due) / seconds, 3),
        "accepted_s": round((len(due) - refused) / seconds, 3),
        "refused_s": round(refused / seconds, 3),
        "late_s": round(late / seconds, 3),
        "failed": sum(outcome.error is not None for outcome in due) - refused - late,
        "tok_s": round(sum(outcome.tokens for outcome in ended) / seconds, 1),
        "goodput_tok_s": round(good / seconds, 1),
        "ttft_ms": {f"p{share}": round(percentile(times, share) * 1000, 1) for share in (50, 99)} if times else None,
    }


def table(runs: Sequence[dict[str, Any]], capacity: float) -> str:
    """One line for each load; times in milliseconds. `capacity` in tokens a second."""
    return aligned([COLUMNS, *(_row(found, capacity) for found in runs)])


def _row(found: dict[str, Any], capacity: float) -> tuple[str, ...]:
    counts = [f"{found[name]:.2f}" for name in ("offered_s", "accepted_s", "refused_s", "late_s")]
    speeds = [f"{found['tok_s']:.1f}", f"{found['goodput_tok_s']:.1f}", f"{found['goodput_tok_s'] / capacity:.0%}" if capacity else "-"]
    times = milliseconds(found["ttft_ms"], ("p50", "p99"))
    return (f"{found['load']:g}x", *counts, str(found["failed"]), *speeds, *times, f"{found['preemptions']:.0f}")
