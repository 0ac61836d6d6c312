"""Counters of the scheduler; they only rise."""

COUNTERS = (
    "accepted",
    "finished_stop",
    "finished_length",
    "cancelled",
    "errors",
    "refused",
    "refused_full",
    "refused_slow",
    "expired",
    "prompt_tokens",
    "generation_tokens",
    "steps",
    "failed_steps",
    "preemptions",
    "prefix_queries",
    "prefix_hits",
    "evicted_blocks",
    "copied_blocks",
    "invariant_violations",
)


class Tally:
    """accepted == finished_stop + finished_length + cancelled + errors + live, at every moment.

    `accepted` and its ends count sequences (n choices are n); `refused` counts those never accepted, `refused_full` those
    of them for which there was no room and `refused_slow` those that would have waited for too long. `expired` counts those of the `errors` that
    were out of time. `prompt_tokens` counts the prompt of each accepted request once, however many choices it has and however often it is computed;
    `generation_tokens` counts tokens delivered.
    `steps` counts results. `prefix_queries` counts the tokens of sequences when they first get a slot, `prefix_hits` those of them that were
    cached.
    """

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTERS, 0)

    def add(self, name: str, number: int = 1) -> None:
        self.counts[name] += number

    def balance(self, live: int) -> None:
        """Make the equation hold again by raising a counter; what is missing ended in error."""
        missing = self.counts["accepted"] - self.ended - live
        self.add("errors" if missing > 0 else "accepted", abs(missing))

    @property
    def ended(self) -> int:
        counts = self.counts
        return counts["finished_stop"] + counts["finished_length"] + counts["cancelled"] + counts["errors"]
