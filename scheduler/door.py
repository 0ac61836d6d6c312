"""What is refused at the door."""

from messages.admit import Admit
from messages.text import Problem
from scheduler.args import SchedulerArgs
from scheduler.bias import Bias
from scheduler.requests import misfit, objection
from scheduler.session import Session
from scheduler.tally import Tally
from scheduler.throughput import Throughput
from scheduler.waiting import Waiting
from transport.columns import I32

DUPLICATE = Problem(status=409, code="duplicate_key", message="a sequence of this key is running")


class Door:
    """Bad requests, requests that can never fit the worker, and those for which the line is too long."""

    def __init__(self, args: SchedulerArgs, waiting: Waiting, tally: Tally, throughput: Throughput) -> None:
        self._args = args
        self._waiting = waiting
        self._tally = tally
        self._throughput = throughput

    def refusal(self, admit: Admit, sequences: list[I32], bias: Bias | None, session: Session | None) -> Problem | None:
        """Why this request is not let in, or None. `sequences`: the tokens of each key, `bias` what its constraints come to."""
        for tokens in sequences if admit.resumed else sequences[:1]:
            problem = objection(tokens, admit.max_tokens)
            if problem is None and session is not None:
                problem = misfit(tokens, bias, session.geometry)
            if problem is not None:
                return problem
        leaving = 0 if session is None else session.slots.free
        return None if admit.resumed else self._queue_full(len(sequences), sum(tokens.size for tokens in sequences), leaving)

    def _queue_full(self, sequences: int, tokens: int, leaving: int) -> Problem | None:
        """The caps of the waiting line; into an empty line a request of any size may go, or it could never be served.

        As many sequences as there are free slots are on their way out of the line and do not count.
        """
        waiting = self._waiting
        if not waiting or (len(waiting) + sequences <= self._args.max_queue + leaving and waiting.tokens + tokens <= self._args.max_queue_tokens):
            return None
        work = waiting.tokens + len(waiting) * self._tally.generated_per_sequence
        return Problem(
            status=429,
            code="queue_full",
            message=f"{len(waiting)} sequences with {waiting.tokens} prompt tokens are waiting; try again later",
            retry_after=self._throughput.retry_after(work),
        )
