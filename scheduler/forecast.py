"""How long things will take: measured over the last busy seconds and the last answers, and what that means for those who wait."""

import math

import numpy as np

from scheduler.deadlines import Work
from scheduler.pace import Pace
from scheduler.session import Session
from scheduler.slots import RUNNING, Slots
from scheduler.tally import Tally
from transport.columns import F64

WINDOW_SECONDS = 5.0
ANSWERS = 256
LOOKED_UP = 1 << 16
LEAST_FRESH = 0.02
SHORTEST, LONGEST, UNKNOWN = 1.0, 3600.0, 5.0
MARGIN = 1.1


class Rate:
    """Seconds for each unit; what is older than WINDOW_SECONDS counts half."""

    def __init__(self) -> None:
        self._units = 0.0
        self._seconds = 0.0

    def add(self, units: float, seconds: float) -> None:
        self._units += units
        self._seconds += seconds
        if self._seconds > WINDOW_SECONDS:
            self._units /= 2
            self._seconds /= 2

    def seconds_for(self, units: float) -> float | None:
        """None before anything was measured."""
        return units * self._seconds / self._units if self._units and self._seconds else None


class Price:
    """What a step takes, and each prompt token in it: a line through the steps so far, of which older ones count half (see Rate)."""

    def __init__(self) -> None:
        self._sums = np.zeros(5)

    def add(self, tokens: int, seconds: float) -> None:
        self._sums += (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        if self._sums[2] > WINDOW_SECONDS:
            self._sums /= 2

    def line(self) -> tuple[float, float] | None:
        """Seconds for a step and for each of its tokens; while all steps were alike, only for tokens. None before one had any."""
        steps, tokens, seconds, squares, products = self._sums.tolist()
        if not tokens:
            return None
        spread = steps * squares - tokens * tokens
        if spread <= 1e-9 * tokens * tokens:
            return 0.0, seconds / tokens
        slope = min(max(0.0, (steps * products - tokens * seconds) / spread), seconds / tokens)
        return (seconds - slope * tokens) / steps, slope


class Forecast:
    """Three things are measured: what prompt tokens take, what a step with decode rows takes, and how long answers are.

    A prediction takes rows to end when they are as long as the last answers were, or at their limits if these come first; and a row that is
    longer already to end as soon as it would if all were spread evenly. Nothing is predicted (None) before it was measured.
    """

    def __init__(self, tally: Tally, pace: Pace, run_ahead: int) -> None:
        self._tally = tally
        self._pace = pace
        self._run_ahead = run_ahead
        self._prompts = Price()
        self._steps = Rate()
        self._answers = 0.0
        self._answer_tokens = 0.0
        self._looked_up = self._found = 0.0

    def add(self, work: Work, seconds: float) -> None:
        """A step took so long, or its result came so long after the one before."""
        self._prompts.add(work.prefill, seconds)
        if work.rows:
            self._steps.add(1, seconds)

    def ended(self, generated: int) -> None:
        """An answer is whole with so many tokens."""
        self._answers += 1
        self._answer_tokens += generated
        if self._answers > ANSWERS:
            self._answers /= 2
            self._answer_tokens /= 2

    def reading(self, session: Session, tokens: float) -> float | None:
        """Seconds to compute so many prompt tokens, none of which is cached, in chunks as large as they may be beside the rows that decode."""
        line = self._prompts.line()
        if line is None or not tokens:
            return None if tokens else 0.0
        rows = int(np.count_nonzero(session.slots.decoding))
        chunk = max(1, min(self._pace.chunk(rows), session.geometry.max_step_tokens - rows))
        return line[0] * math.ceil(tokens / chunk) + line[1] * tokens

    def fresh(self, tokens: float) -> float:
        """How many of so many prompt tokens will not be cached, as it was lately."""
        looked_up, found = self._tally.counts["prefix_queries"] - self._looked_up, self._tally.counts["prefix_hits"] - self._found
        if looked_up > LOOKED_UP:
            self._looked_up += looked_up / 2
            self._found += found / 2
        return tokens * max(LEAST_FRESH, 1.0 - found / looked_up) if looked_up else tokens

    def endings(self, slots: Slots, number: int) -> float | None:
        """Seconds until so many of those that run, and of those that come after them, have ended, and the plans that still name them."""
        if number <= 0:
            return 0.0
        left = np.sort(self._left(slots))
        if not left.size:
            return None
        rounds, place = divmod(number - 1, left.size)
        return self._steps.seconds_for(float(rounds * (self._length(slots) + self._run_ahead) + left[place] + self._run_ahead))

    def freed(self, slots: Slots, tokens: int) -> float | None:
        """Seconds until sequences have ended that may come to so many tokens together (see `Live.reserved`)."""
        rows = np.flatnonzero(slots.state == RUNNING)
        if not rows.size:
            return None
        freed = np.cumsum(slots.limit[rows][np.argsort(self._left(slots))])
        if (more := tokens - int(freed[-1])) > 0:
            return self.endings(slots, rows.size + math.ceil(more / (int(freed[-1]) / rows.size)))
        return self.endings(slots, int(np.searchsorted(freed, tokens)) + 1)

    def _length(self, slots: Slots) -> float:
        """Tokens of an answer: of the last ones, or without any the most that those may have which run."""
        if self._answers:
            return max(1.0, self._answer_tokens / self._answers)
        rows = slots.state == RUNNING
        return float((slots.limit[rows] - slots.prompt_len[rows]).mean())

    def _left(self, slots: Slots) -> F64:
        """Tokens that each running row is taken to generate yet."""
        rows = np.flatnonzero(slots.state == RUNNING)
        if not rows.size:
            return np.zeros(0)
        length = self._length(slots)
        left = np.float64(length) - (slots.length[rows] - slots.prompt_len[rows])
        late = left <= 0
        left[late] = np.arange(1, np.count_nonzero(late) + 1) * length / rows.size
        return left.clip(max=slots.limit[rows] - slots.length[rows])

    def turn(self, session: Session, number: int, tokens: float, blocked: str) -> float | None:
        """Seconds until a request may run that comes after `number` - 1 others in line with `tokens` prompt tokens together.

        `blocked`: what the first in line waits for. Those before it need slots, or blocks, which endings give, and have their prompts read.
        """
        unfinished = sum(int(session.slots.target[slot] - session.slots.planned[slot]) for slot in session.prefilling)
        read = self.reading(session, unfinished + self.fresh(tokens))
        ended = self.endings(session.slots, number if blocked == "blocks" else number - session.slots.free)
        return None if read is None or ended is None else max(read, ended)

    def first_token(self, session: Session, number: int, tokens: float, own: int, blocked: str) -> float | None:
        """Seconds until its first token: with its `own` prompt tokens."""
        return self.first_token_after(session, self.turn(session, number, tokens, blocked), own)

    def first_token_after(self, session: Session, turn: float | None, own: int) -> float | None:
        """The same when it may run in `turn` seconds."""
        read = self.reading(session, self.fresh(own))
        return None if turn is None or read is None else turn + read


def retry_after(seconds: float | None) -> float:
    """What a client is told: a little more than is predicted, in tenths, from SHORTEST to LONGEST; UNKNOWN for None."""
    return UNKNOWN if seconds is None else math.ceil(min(LONGEST, max(SHORTEST, seconds * MARGIN)) * 10) / 10
