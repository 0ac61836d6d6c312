"""How long the result of a step is awaited before its worker is taken to hang."""

import math
from typing import NamedTuple

FLOOR = 10.0
TIMES = 10.0
FADING = 0.9
MOST_PATIENCE = 8.0
WATCHED, STOPPED = 5.0, 3.0
"""The floor in haste: while rows are watched because the worker has just failed with them, and while it is known to be stopped."""


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

    `watched` is true while rows are watched, `stopped` is to be set while the worker is: in such haste the floor is lower, there is no such patience,
    and the first step of its kind has no more than FLOOR or what it should take by the largest step so far.

    `busy` is to be set while rows are watched and the worker is at work, or would be if the machine let it: that one is slow, and there is no haste.
    Only the first step of a kind has no more than FLOOR all the same, for a watched row may keep the worker at work for ever.
    """

    def __init__(self, allowance: float, watched: object = None) -> None:
        self.allowance = allowance or math.inf
        self._slowest: dict[tuple[int, int, int], float] = {}
        self._patience: dict[tuple[int, int, int], float] = {}
        self._largest = 1
        self._seconds = 0.0
        self._watched = watched
        self.stopped = self.busy = False

    @property
    def watching(self) -> bool:
        """Rows are watched, and something is known of this machine."""
        return self._seconds > 0 and bool(self._watched)

    @property
    def _floor(self) -> float | None:
        """In haste."""
        if self.stopped:
            return STOPPED
        return WATCHED if self.watching and not self.busy else None

    def of(self, work: Work) -> float:
        """Seconds that this step may take."""
        if self.allowance == math.inf:
            return math.inf
        seconds, floor = self._slowest.get(work.kind), self._floor
        least = floor or FLOOR
        if seconds is None:
            least = FLOOR if floor or self.watching else self.allowance
            seconds = self._seconds * max(1.0, (work.prefill + work.rows) / self._largest)
        return max(min(least, self.allowance), TIMES * seconds) * (1.0 if floor else self._patience.get(work.kind, 1.0))

    def add(self, work: Work, seconds: float) -> None:
        """A step took so long."""
        kind, tokens = work.kind, work.prefill + work.rows
        self._patience.pop(kind, None)
        self._slowest[kind] = max(seconds, FADING * self._slowest.get(kind, 0.0))
        if tokens >= self._largest:
            self._largest, self._seconds = tokens, seconds

    def missed(self, work: Work) -> None:
        """This step has not come back in time. In haste that says nothing of the machine."""
        if self._floor is None:
            self._patience[work.kind] = min(MOST_PATIENCE, 2 * self._patience.get(work.kind, 1.0))
