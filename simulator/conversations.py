"""Chats: users who share a system prompt and wait for each answer before they write again."""

import random
from dataclasses import dataclass

import numpy as np

from simulator.workload import Job
from transport.columns import I32

IDS = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """A closed loop: `users` send `turns` messages each. Every prompt is the system prompt and the conversation so far.

    `user_tokens` are in each message, `answer_tokens` in each answer; a user thinks for `think` seconds on average (exponential). Users begin
    within the first `think` seconds. One whose message is refused gives up.
    """

    users: int
    turns: int
    system_tokens: int
    user_tokens: int
    answer_tokens: int
    think: float
    seed: int
    name: str = "chat"

    @property
    def requests(self) -> int:
        return self.users * self.turns

    @property
    def vocab(self) -> int:
        return IDS

    def jobs(self) -> list[Job]:
        system = self._message(0, 0, self.system_tokens)
        begin = random.Random(self.seed)
        first = [self._job(user, 1, system, begin.uniform(0.0, self.think)) for user in range(self.users)]
        return sorted(first, key=lambda job: job.at)

    def after(self, job: Job, answer: I32, now: float) -> Job | None:
        user, turn = divmod(job.group, self.turns + 1)
        if turn == self.turns:
            return None
        pause = random.Random(f"{self.seed}/{user}/{turn}").expovariate(1 / self.think) if self.think else 0.0
        return self._job(user, turn + 1, np.concatenate([job.prompt, answer]), now + pause)

    def _job(self, user: int, turn: int, before: I32, at: float) -> Job:
        prompt = np.concatenate([before, self._message(user + 1, turn, self.user_tokens)])
        return Job(at=at, prompt=prompt, max_tokens=self.answer_tokens, group=user * (self.turns + 1) + turn)

    def _message(self, author: int, turn: int, tokens: int) -> I32:
        return np.random.default_rng([self.seed, author, turn]).integers(0, IDS, tokens, dtype=np.int32)
