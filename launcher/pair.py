"""A scheduler and a worker process without the rest of a cluster, for `bench offline` and the like, which sends them ids as a tokenizer would."""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import zmq

from launcher.child import Child
from launcher.errors import LauncherError
from launcher.specs import SCHEDULER, WORKERS, ProcessSpec
from messages.admit import Admit
from messages.cluster import DEAD, READY, ProcessReport
from messages.sampling import SamplingParams
from messages.tokens import FINISH_ERROR, RUNNING, FromScheduler, Refused, Tokens
from scheduler.args import SchedulerArgs
from transport.columns import I32, pack_i32, view_i32, view_i64, view_u8
from transport.reports import SUPERVISOR
from transport.sockets import Inbox, Outbox
from worker.args import WorkerArgs

TOKENIZER = "tokenizer0"
WAIT_SECONDS = 0.05
STOP_SECONDS = 10.0
SHOWN_LINES = 20
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


class Pair:
    """`with Pair(scheduler, worker) as pair`: both processes, ready. For the main thread only. Raises LauncherError when one of them ends.

    `trace`: a file that launcher.tracing has made.
    """

    def __init__(self, scheduler: dict[str, Any], worker: dict[str, Any], startup_timeout: float = 600.0, trace: str | None = None) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pagewire-"))
        self._startup_timeout = startup_timeout
        common: dict[str, Any] = {"incarnation": 0, "run_dir": str(self._folder), "trace": trace}
        specs = [
            ProcessSpec(package="worker", args=WorkerArgs(name="worker0", **common, **worker), stage=WORKERS),
            ProcessSpec(package="scheduler", args=SchedulerArgs(name="scheduler", tokenizers=[TOKENIZER], **common, **scheduler), stage=SCHEDULER),
        ]
        self.log: list[str] = []
        self._children = {spec.name: Child(spec, self.log.append) for spec in specs}
        self._reports: dict[str, ProcessReport] = {}
        self._keys = 0
        self.facts: dict[str, int | float | str] = {}
        self.start_seconds = 0.0

    def __enter__(self) -> "Pair":
        self._context: zmq.Context[Any] = zmq.Context()
        self._supervisor: Inbox[ProcessReport] = Inbox(self._context, self._folder, SUPERVISOR, ProcessReport)
        self._inbox: Inbox[Any] = Inbox(self._context, self._folder, TOKENIZER, FromScheduler)
        self._outbox = Outbox(self._context, self._folder, "scheduler")
        self._death = os.pipe()
        began = time.perf_counter()
        try:
            for child in self._children.values():
                child.start(self._death[0])
            while not all(name in self._reports and self._reports[name].phase == READY for name in self._children):
                self._watch(WAIT_SECONDS)
                if time.perf_counter() - began > self._startup_timeout:
                    raise LauncherError(f"the worker was not ready after {self._startup_timeout:.0f} s")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.start_seconds = time.perf_counter() - began
        return self

    def warm(self) -> None:
        """Wait until the worker has made ready for all sizes of steps, as it does while nothing is asked of it."""
        ends = time.monotonic() + WARM_SECONDS
        while self._reports["worker0"].gauges.get("warming", 1.0) and time.monotonic() < ends:
            self._watch(WAIT_SECONDS)

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
                    tokenizer=TOKENIZER, keys=[key], seeds=[key], prompt=pack_i32(order.prompt), sampling=sampling, end_ids=[],
                    max_tokens=order.max_tokens,
                )
            )  # fmt: skip
        got = np.zeros(len(orders), np.int64)
        ended = 0
        while ended < len(orders):
            if not self._inbox.wait(WAIT_SECONDS):
                self._watch(0)
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
            self._watch(WAIT_SECONDS)
        return self._reports["worker0"].counters

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

    def _watch(self, seconds: float) -> None:
        """Take in reports, and see whether the processes still live."""
        self._supervisor.wait(seconds)
        for report in self._supervisor.drain():
            self._reports[report.name] = report
            if report.name == "worker0":
                self.facts |= report.facts
        for name, child in self._children.items():
            if child.reap(time.monotonic()):
                said = self._reports.get(name)
                why = said.detail if said is not None and said.phase == DEAD else child.cause
                raise LauncherError("\n".join([f"{name} ended ({child.last_exit}): {why}", *list(child.tail)[-SHOWN_LINES:]]))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        ends = time.monotonic() + STOP_SECONDS
        for child in self._children.values():
            child.terminate()
        while any(child.running for child in self._children.values()):
            if time.monotonic() > ends:
                for child in self._children.values():
                    child.kill()
            for child in self._children.values():
                child.reap(time.monotonic())
            time.sleep(WAIT_SECONDS)
        for socket in (self._supervisor, self._inbox, self._outbox):
            socket.close()
        self._context.term()
        for end in self._death:
            os.close(end)
        shutil.rmtree(self._folder, ignore_errors=True)
