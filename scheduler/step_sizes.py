"""How many tokens the steps computed: a histogram of Prometheus' kind, as plain counters."""

from bisect import bisect_left
from itertools import accumulate

from messages.cluster import STEP_TOKENS, STEP_TOKENS_LE

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
        """STEP_TOKENS, and STEP_TOKENS_LE with each of the BOUNDS; see `messages.cluster`."""
        counters = {f"{STEP_TOKENS_LE}{bound}": float(steps) for bound, steps in zip(BOUNDS, accumulate(self._counts), strict=False)}
        return {STEP_TOKENS: float(self._tokens), **counters}
