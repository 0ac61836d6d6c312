"""The clients of a simulation: they send jobs, note when tokens come, and leave when their job says so."""

from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from messages.admit import Abort, Admit
from messages.text import Problem
from messages.tokens import Refused, Tokens
from simulator.trace import Latencies
from simulator.worker import NO_ENDING, Script, end_token, token_at
from simulator.workload import Choice, Job, Workload
from transport.columns import view_i32, view_i64, view_u8

TOKENIZER = "tokenizer0"
FIRST_ROOM = 1024
Post = tuple[float, Job | Abort]


@dataclass(slots=True)
class Sequence:
    """One choice of a job while it lives. Its key is its seed."""

    job: Job
    choice: Choice
    first_key: int


class Clients:
    """Turns jobs into messages and what comes back into latencies. `due` holds what is to be sent, with its time, until it is taken.

    `refusals` counts refused sequences by HTTP status; `problem` is why the first of them was.
    """

    def __init__(self, workload: Workload, vocab: int) -> None:
        self.latencies = Latencies()
        self.refusals: dict[int, int] = {}
        self.problem: Problem | None = None
        self.ended = self.sent = self.sequences = self.left = 0
        self.first_sent = self.last_token = 0.0
        self.due: list[Post] = [(job.at, job) for job in workload.jobs()]
        self._workload = workload
        self._vocab = vocab
        self._live: dict[int, Sequence] = {}
        self._open: dict[int, int] = {}
        self._leavers: set[int] = set()
        self._at: NDArray[np.float64] = np.zeros(FIRST_ROOM)
        self._last: NDArray[np.float64] = np.zeros(FIRST_ROOM)

    def admit(self, job: Job, now: float) -> Admit:
        """The message of a job that is sent now."""
        first, self.sequences = self.sequences, self.sequences + len(job.choices)
        keys = list(range(first, self.sequences))
        self._make_room()
        self._at[keys] = now
        self.first_sent = now if not self.sent else self.first_sent
        self.sent += 1
        self._open[first] = len(keys)
        for key, choice in zip(keys, job.choices, strict=True):
            self._live[key] = Sequence(job, choice, first)
            if choice.leaves_after == 0:
                self.due.append((now + choice.patience, Abort([key], choice.stop_string)))
            elif choice.leaves_after is not None:
                self._leavers.add(key)
        return Admit(
            tokenizer=TOKENIZER,
            keys=keys,
            seeds=keys,
            prompt=job.prompt.tobytes(),
            sampling=replace(job.sampling, prompt_logprobs=-1),  # no worker here can tell them
            end_ids=[end_token(self._vocab)],
            max_tokens=job.max_tokens,
            priority=job.priority,
            tenant=job.tenant,
            cache_salt=job.cache_salt,
        )

    def abort(self, abort: Abort, now: float) -> None:
        """These clients leave now."""
        for key in abort.keys:
            if key in self._live:
                self.left += not abort.finished
                self._end(key, 0, now)

    def script(self, seed: int) -> Script:
        """What the row of a seed says; see NullWorker."""
        sequence = self._live.get(seed)
        if sequence is None:
            return Script()
        prompt, choice = sequence.job.prompt.size, sequence.choice
        return Script(prompt, NO_ENDING if choice.stops_after is None else prompt + choice.stops_after, choice.answer)

    def receive(self, message: Tokens | Refused, now: float) -> None:
        """What the scheduler sends."""
        if isinstance(message, Refused):
            self.problem = self.problem or message.problem
            self.refusals[message.problem.status] = self.refusals.get(message.problem.status, 0) + 1
            self._end(message.key, None, now)
            return
        keys, index, finish = view_i64(message.key), view_i32(message.index), view_u8(message.finish)
        first = index == 0
        if first.any():
            self.latencies.ttft.append(now - self._at[keys[first]])
        self.latencies.gaps.append(now - self._last[keys[~first]])
        self._last[keys] = self.last_token = now
        for place in np.flatnonzero(finish).tolist():
            self.latencies.whole.append(now - self._at[keys[place : place + 1]])
            self._end(int(keys[place]), int(index[place]) + 1, now)
        if self._leavers:
            self._leave(keys.tolist(), index.tolist(), now)

    def _leave(self, keys: list[int], index: list[int], now: float) -> None:
        for key, place in zip(keys, index, strict=True):
            if key in self._leavers and place + 1 == self._live[key].choice.leaves_after:
                self.due.append((now, Abort([key], self._live[key].choice.stop_string)))

    def _end(self, key: int, tokens: int | None, now: float) -> None:
        """The sequence is over with so many tokens; None: it was refused, and nothing follows it."""
        sequence = self._live.pop(key)
        self._leavers.discard(key)
        self._open[sequence.first_key] -= 1
        if self._open[sequence.first_key]:
            return
        del self._open[sequence.first_key]
        self.ended += 1
        if tokens is None:
            return
        position = np.arange(sequence.job.prompt.size, sequence.job.prompt.size + tokens, dtype=np.int64)
        answer = token_at(np.full(tokens, key, dtype=np.int64), position, self._vocab)
        following = self._workload.after(sequence.job, answer, now)
        if following is not None:
            self.due.append((following.at, following))

    def _make_room(self) -> None:
        while self._at.size < self.sequences:
            self._at, self._last = (np.concatenate([column, np.zeros_like(column)]) for column in (self._at, self._last))
