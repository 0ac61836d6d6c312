"""What is refused at the door."""

import math

from messages.admit import Admit
from messages.text import DEADLINE_EXCEEDED, QUEUE_FULL, QUEUE_TOO_SLOW, Problem
from scheduler.args import SchedulerArgs
from scheduler.bias import Bias
from scheduler.forecast import Forecast, retry_after
from scheduler.live import Live, reserve
from scheduler.requests import misfit, objection
from scheduler.session import Session
from scheduler.tally import Tally
from scheduler.waiting import Waiting, score
from transport.columns import I32

DUPLICATE = Problem(status=409, code="duplicate_key", message="a sequence of this key is running")
EXPIRED = Problem(status=504, code=DEADLINE_EXCEEDED, message="The request did not end within its timeout.")
CLOSING = Problem(status=503, code="shutting_down", message="the server is shutting down", retry_after=5.0, passing=True)
COUNTER_OF = {QUEUE_FULL: "refused_full", QUEUE_TOO_SLOW: "refused_slow"}


class Door:
    """Bad requests, requests that can never fit the worker, those for which there is no room, and those that would wait for too long."""

    def __init__(self, args: SchedulerArgs, waiting: Waiting, live: Live, tally: Tally, forecast: Forecast) -> None:
        self._args = args
        self._waiting = waiting
        self._live = live
        self._tally = tally
        self._forecast = forecast
        self._closed = False

    def close(self) -> None:
        """Let nobody in from now on."""
        self._closed = True

    def refusal(
        self, admit: Admit, sequences: list[I32], bias: Bias | None, session: Session | None, blocked: str, now: float
    ) -> Problem | None:
        """Why this request is not let in, or None. `sequences`: the tokens of each key, `bias` what its constraints come to. `blocked`: what the
        first in line waits for."""
        if self._closed:
            return CLOSING
        for tokens in sequences if admit.resumed else sequences[:1]:
            problem = objection(tokens, admit.max_tokens)
            if problem is None and session is not None:
                problem = misfit(tokens, bias, session.geometry)
            if problem is not None:
                return problem
        if admit.resumed:
            return None
        return self._no_room(admit, sequences, session, blocked) or self._too_slow(admit, sequences, session, blocked, now)

    def count(self, problem: Problem) -> None:
        """A key was refused for this."""
        self._tally.add("refused")
        if problem.code in COUNTER_OF:
            self._tally.add(COUNTER_OF[problem.code])

    def _no_room(self, admit: Admit, sequences: list[I32], session: Session | None, blocked: str) -> Problem | None:
        """The caps of the line and of all tokens; a request of any size may go into an empty line, or it could never be served.

        As many sequences as there are free slots are on their way out of the line and do not count.
        """
        args, waiting = self._args, self._waiting
        tokens = sum(sequence.size for sequence in sequences)
        free = 0 if session is None else session.slots.free
        if waiting and (excess := len(waiting) + len(sequences) - args.max_queue - free) > 0:
            why = f"{len(waiting)} sequences are waiting"
            return _full(why, None if session is None else self._forecast.endings(session.slots, min(excess, max(1, len(waiting) - free))))
        if waiting and (excess := waiting.tokens + tokens - args.max_queue_tokens) > 0:
            why = f"sequences with {waiting.tokens} prompt tokens are waiting"
            return _full(why, None if session is None else self._leaving(excess, session, blocked))
        reserved = len(sequences) * reserve(sequences[0].size, admit.max_tokens, None if session is None else session.geometry)
        if args.max_live_tokens and self._live and (excess := self._live.reserved + reserved - args.max_live_tokens) > 0:
            why = f"{len(self._live)} sequences that may come to {self._live.reserved} tokens are running or waiting"
            return _full(why, None if session is None else self._forecast.freed(session.slots, min(excess, self._live.reserved)))
        return None

    def _leaving(self, tokens: int, session: Session, blocked: str) -> float | None:
        """Seconds until sequences with so many tokens have left the line."""
        number, tokens = len(self._waiting), min(tokens, self._waiting.tokens)
        return self._forecast.turn(session, math.ceil(tokens * number / self._waiting.tokens), tokens, blocked)

    def _too_slow(self, admit: Admit, sequences: list[I32], session: Session | None, blocked: str, now: float) -> Problem | None:
        """Whoever would wait in line for too long, or whose first token would come too late. Who comes next is never refused for that."""
        most, timeout = self._args.max_queue_seconds or math.inf, math.inf if admit.timeout is None else admit.timeout
        if session is None or (most is math.inf and timeout is math.inf):
            return None
        before, tokens = self._waiting.ahead(admit.tenant, score(admit.priority, now))
        place = before + len(sequences)
        turn = self._forecast.turn(session, place, tokens, blocked)
        first = self._forecast.first_token(session, place, tokens, sequences[0].size, blocked)
        if not turn or first is None or (turn <= most and first <= timeout):
            return None
        late = max(turn - most, min(turn, first - timeout))
        limit = f"{most:g} s that requests may wait here" if turn > most else f"its timeout of {timeout:.3g} s"
        message = f"the first token of this request would come after about {first:.3g} s, but the limit is {limit}; try again later"
        return Problem(status=429, code=QUEUE_TOO_SLOW, message=message, retry_after=retry_after(late))


def _full(why: str, seconds: float | None) -> Problem:
    return Problem(status=429, code=QUEUE_FULL, message=f"{why}; try again later", retry_after=retry_after(seconds))
