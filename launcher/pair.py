"""A scheduler and a worker process without the rest of a cluster, for `bench offline` and the like, which sends them ids as a tokenizer would."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from launcher.errors import LauncherError
from launcher.specs import SCHEDULER, WORKER_NAME, WORKERS, ProcessSpec
from launcher.stand import WAIT_SECONDS, Stand
from messages.admit import Admit
from messages.cluster import SCHEDULER_NAME
from messages.sampling import SamplingParams
from messages.tokens import FINISH_ERROR, RUNNING, FromScheduler, Refused, Tokens
from scheduler.args import SchedulerArgs
from transport.columns import I32, pack_i32, view_i32, view_i64, view_u8
from transport.sockets import Inbox, Outbox
from worker.args import WorkerArgs

PLAYER = "player"
"""The name under which the benchmark is a tokenizer of the scheduler's."""
WARM_SECONDS = 120.0
SETTLE_SECONDS = 1.2
"""Longer than a heartbeat: after this the worker's counters are of what came before."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """One request: its prompt and how many tokens it is to give."""

    prompt: I32
    max_tokens: int


@dataclass
class Record:
    """What came back, in seconds since the requests were sent: `first` token of each request, and for each message when it came and its rows."""

    seconds: float = 0.0
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)


class Pair(Stand):
    """`with Pair(scheduler, worker) as pair`: both processes, ready, with these arguments. `trace`: a file that launcher.tracing has made."""

    def __init__(self, scheduler: dict[str, Any], worker: dict[str, Any], startup_timeout: float = 600.0, trace: str | None = None) -> None:
        super().__init__(startup_timeout, trace)
        self.scheduler_arguments, self.worker_arguments = scheduler, worker
        self._keys = 0

    def specs(self) -> Sequence[ProcessSpec]:
        worker = WorkerArgs(**self.common(WORKER_NAME), **self.worker_arguments)
        tokenizers = [PLAYER, *self.tokenizers()]  # a benchmark waits for every step: nobody is here to kill a worker
        scheduler = SchedulerArgs(**self.common(SCHEDULER_NAME), tokenizers=tokenizers, step_deadline=0.0, **self.scheduler_arguments)
        return [
            ProcessSpec(package="worker", args=worker, stage=WORKERS),
            ProcessSpec(package="scheduler", args=scheduler, stage=SCHEDULER),
        ]

    def tokenizers(self) -> list[str]:
        """Names of tokenizer processes of the scheduler's besides the benchmark."""
        return []

    def open(self) -> None:
        self._inbox: Inbox[Any] = Inbox(self.context, self.folder, PLAYER, FromScheduler)
        self._outbox = Outbox(self.context, self.folder, SCHEDULER_NAME)

    def close(self) -> None:
        self._inbox.close()
        self._outbox.close()

    @property
    def facts(self) -> dict[str, int | float | str]:
        """What the worker reported once it was ready."""
        return self.facts_of(WORKER_NAME)

    def warm(self) -> None:
        """Wait until the worker has made ready for all sizes of steps, as it does while nothing is asked of it."""
        ends = time.monotonic() + WARM_SECONDS
        while self.gauges_of(WORKER_NAME).get("warming", 1.0) and time.monotonic() < ends:
            self.watch(WAIT_SECONDS)

    def play(self, orders: Sequence[Order], sampling: SamplingParams) -> Record:
        """Send all at once and read their tokens to the end. Raises LauncherError when one does not give all of them."""
        first = self._keys
        self._keys += len(orders)
        due = np.array([order.max_tokens for order in orders])
        record = Record()
        began = time.perf_counter()
        for key, order in enumerate(orders, first):
            self._outbox.send(
                Admit(
                    tokenizer=PLAYER, keys=[key], seeds=[key], prompt=pack_i32(order.prompt), sampling=sampling, end_ids=[],
                    max_tokens=order.max_tokens,
                )
            )  # fmt: skip
        got = np.zeros(len(orders), np.int64)
        ended = 0
        while ended < len(orders):
            self._inbox.wait(WAIT_SECONDS)
            self.beat()
            for message in self._inbox.drain():
                ended += self._note(message, first, got, record, time.perf_counter() - began)
        record.seconds, record.tokens = record.times[-1], int(got.sum())
        if (got != due).any():
            raise LauncherError("a request gave another number of tokens than it was asked for")
        return record

    def counters(self) -> dict[str, float]:
        """The worker's counters, of everything before this call."""
        ends = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < ends:
            self.watch(WAIT_SECONDS)
        return self.counters_of(WORKER_NAME)

    def _note(self, message: Tokens | Refused, first: int, got: np.ndarray, record: Record, now: float) -> int:
        """Count one message; gives how many requests it ends."""
        if isinstance(message, Refused):
            raise LauncherError(f"a request was refused: {message.problem.message}")
        key, finish, index = view_i64(message.key) - first, view_u8(message.finish), view_i32(message.index)
        if (finish == FINISH_ERROR).any():
            raise LauncherError(f"a request failed: {next(iter(message.problems.values())).message}")
        got[key] += 1
        record.first += [now] * int((index == 0).sum())
        record.times.append(now)
        record.rows.append(len(key))
        return int((finish != RUNNING).sum())
