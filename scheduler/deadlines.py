"""How long the result of a step is awaited before its worker is taken to hang."""

import math
from typing import NamedTuple

FLOOR = 10.0
TIMES = 10.0
FADING = 0.9
MOST_PATIENCE = 8.0


class Work(NamedTuple):
    """What a step computes: prompt tokens, decode rows, and the KV positions that these read."""

    prefill: int
    rows: int
    reads: int

    @property
    def kind(self) -> tuple[int, int, int]:
        """Steps of one kind are alike in magnitude."""
        return self.prefill.bit_length(), self.rows.bit_length(), self.reads.bit_length()


class Deadlines:
    """`allowance`: seconds for the first step of its kind, whose kernels may have to be compiled; 0: every step may take for ever.

    Later ones may take TIMES as long as the slowest of their kind lately, and always FLOOR. A first one may take as much longer than the
    largest step so far as it has more tokens. A kind that missed its deadline has twice the time until one of it comes back, up to MOST_PATIENCE
    times: a machine that is only slow is not given up for ever.
    """

    def __init__(self, allowance: float) -> None:
        self._allowance = allowance or math.inf
        self._slowest: dict[tuple[int, int, int], float] = {}
        self._patience: dict[tuple[int, int, int], float] = {}
        self._largest = 1
        self._seconds = 0.0

    def of(self, work: Work) -> float:
        """Seconds that this step may take."""
        seconds = self._slowest.get(work.kind)
        least = self._allowance if seconds is None else min(FLOOR, self._allowance)
        if seconds is None:
            seconds = self._seconds * max(1.0, (work.prefill + work.rows) / self._largest)
        return max(least, TIMES * seconds) * self._patience.get(work.kind, 1.0)

    def add(self, work: Work, seconds: float) -> None:
        """A step took so long."""
        kind, tokens = work.kind, work.prefill + work.rows
        self._patience.pop(kind, None)
        self._slowest[kind] = max(seconds, FADING * self._slowest.get(kind, 0.0))
        if tokens >= self._largest:
            self._largest, self._seconds = tokens, seconds

    def missed(self, work: Work) -> None:
        """This step has not come back in time."""
        self._patience[work.kind] = min(MOST_PATIENCE, 2 * self._patience.get(work.kind, 1.0))
