"""How many tokens the steps computed: a histogram of Prometheus' kind, as plain counters."""

from bisect import bisect_left
from itertools import accumulate

BOUNDS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class StepSizes:
    """For steps whose result has come; the tokens are those of prompts and one for each row that decodes."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._tokens = 0

    def add(self, tokens: int) -> None:
        self._counts[bisect_left(BOUNDS, tokens)] += 1
        self._tokens += tokens

    def counters(self) -> dict[str, float]:
        """`step_tokens`, all of them, and `step_tokens_le_N`, the steps of at most N tokens."""
        counters = {f"step_tokens_le_{bound}": float(steps) for bound, steps in zip(BOUNDS, accumulate(self._counts), strict=False)}
        return {"step_tokens": float(self._tokens), **counters}
