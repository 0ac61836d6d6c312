"""The thread that waits for steps to end on the device and sends their results, so that the thread that launches steps never waits."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from kernels.reference.sampling import Sampled
from messages.result import NON_FINITE, OK, UNMATCHED, ScoreColumns, StepResult
from messages.tokens import LogprobColumns
from transport.columns import I32, U8, pack_f32, pack_i32, pack_u8
from worker.matching import Matching, Wanted
from worker.resident.parcel import Parcel, Parcels
from worker.resident.post import Posted
from worker.resident.trace import StepTrace
from worker.resident.wishes import Wishes
from worker.scores import Found, Scored, score_columns
from worker.totals import Totals
from worker.tracing import Tracing, Work

LONGEST_GAP = 0.05
"""Seconds without work on the device that still count as a gap between two steps, not as idleness."""

Deliver = Callable[[StepResult], object]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Logprobs on their way to the host: batch `rows` that asked for `counts` alternatives, then chosen [L], top and top ids [L, most]."""

    rows: list[int]
    counts: list[int]
    chosen: Tensor
    top: Tensor
    top_ids: Tensor

    def columns(self, token: I32) -> LogprobColumns | None:
        """Of the rows whose logits were finite; None when there is none."""
        kept = [index for index, row in enumerate(self.rows) if token[row] >= 0]
        if not kept:
            return None
        counts = [min(self.counts[index], self.top.shape[1]) for index in kept]
        chosen, top, top_ids = self.chosen.numpy(), self.top.numpy(), self.top_ids.numpy()
        return LogprobColumns(
            row=pack_i32([self.rows[index] for index in kept]),
            chosen=pack_f32(chosen[kept]),
            count=pack_i32(counts),
            top_ids=pack_i32(np.concatenate([top_ids[index, :count] for index, count in zip(kept, counts, strict=True)])),
            top=pack_f32(np.concatenate([top[index, :count] for index, count in zip(kept, counts, strict=True)])),
        )


def ask(parcel: Parcel, out: Sampled, wishes: Wishes) -> Asked | None:
    """For the logprobs that were sampled, if any."""
    if out.chosen is None or out.top is None or out.top_ids is None:
        return None
    chosen, top, top_ids = parcel.fetch("asked", [out.chosen, out.top, out.top_ids])
    return Asked(rows=wishes.logprob_rows, counts=wishes.logprob_counts, chosen=chosen, top=top, top_ids=top_ids)


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Logprobs and hidden states of prompts on their way to the host."""

    scored: Scored
    found: Found

    def columns(self) -> ScoreColumns:
        return score_columns(self.scored, self.found)


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A step that the device has yet to finish. In seconds of `time.monotonic()`: `applying` its plan from and to, and when it was `launched`.

    Its tokens come to its parcel, or where they are `posted`.
    """

    session: int
    step: int
    slot: I32
    parcel: Parcel
    prefill_tokens: int
    decode_tokens: int
    queued: float
    applying: tuple[float, float]
    launched: float
    posted: Posted | None = None
    asked: Asked | None = None
    scoring: Scoring | None = None
    matched: list[Wanted] = field(default_factory=list)


class Reader:
    """`put` steps in the order they were launched; `deliver` is called with each result, in that order, from this object's thread.

    Before that `matching` hears which tokens rows that follow a grammar have got.
    """

    def __init__(self, parcels: Parcels, matching: Matching, deliver: Deliver, tracing: Tracing | None = None) -> None:
        self.totals = Totals()
        self.error: BaseException | None = None
        self._parcels = parcels
        self._matching = matching
        self._deliver = deliver
        self._steps: queue.SimpleQueue[Launched | None] = queue.SimpleQueue()
        self._previous: Parcel | None = None
        self._trace: StepTrace | None = None
        if tracing is not None:
            self._previous = parcels.take()
            self._previous.done.record()
            self._previous.done.synchronize()
            self._trace = StepTrace(tracing, time.monotonic())
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)
        self._thread.start()

    def put(self, step: Launched) -> None:
        self._steps.put(step)

    def close(self) -> None:
        """Deliver what is on its way and end the thread."""
        self._steps.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (step := self._steps.get()) is not None:
                self._finish(step)
        except BaseException as error:  # the launching thread looks at `error` and ends the process
            self.error = error

    def _finish(self, step: Launched) -> None:
        parcel = step.parcel
        parcel.done.synchronize()
        seen = time.monotonic()
        count = len(step.slot)
        token = parcel.down.numpy()[:count].copy() if step.posted is None else step.posted.tokens(count)
        times = self._times(parcel)
        seconds, since = times or (0.0, 0.0)
        gap = since if 0 <= since < LONGEST_GAP else 0.0
        status = np.where(token >= 0, np.uint8(OK), np.uint8(NON_FINITE))
        self._match(step.matched, token, status)
        logprobs = None if step.asked is None else step.asked.columns(token)
        result = StepResult(
            session=step.session,
            step=step.step,
            slot=pack_i32(step.slot),
            token=pack_i32(token),
            status=pack_u8(status),
            logprobs=logprobs,
            scores=None if step.scoring is None else step.scoring.columns(),
            seconds=seconds,
            queued=step.queued,
        )
        self._deliver(result)
        self.totals = self.totals.with_step(step.prefill_tokens, step.decode_tokens, seconds, gap)
        if self._trace is not None:
            self._trace.finished(_work(step), step.applying, parcel.sending, step.launched, times, seen)
        if self._previous is not None:
            self._parcels.give(self._previous)
        self._previous = parcel

    def _match(self, matched: list[Wanted], token: I32, status: U8) -> None:
        """Tell what the rows have got; a row that could not be matched has got nothing."""
        for one in matched:
            if token[one.index] < 0:
                self._matching.fail(one.row, "its logits are not finite")
            elif one.row.failed:
                token[one.index], status[one.index] = -1, UNMATCHED
            else:
                self._matching.note(one.row, [int(token[one.index])])
        if matched:
            self._matching.wake()

    def _times(self, parcel: Parcel) -> tuple[float, float] | None:
        """Seconds the device took for the step, and seconds since the end of the one before it, 0 for the first; None when it has no clock."""
        if not isinstance(parcel.begun, torch.cuda.Event) or not isinstance(parcel.done, torch.cuda.Event):
            return None
        gap = 0.0
        if self._previous is not None and isinstance(self._previous.done, torch.cuda.Event):
            gap = self._previous.done.elapsed_time(parcel.begun) / 1e3
        return parcel.begun.elapsed_time(parcel.done) / 1e3, gap


def _work(step: Launched) -> Work:
    return Work(
        session=step.session, step=step.step, prefill_tokens=step.prefill_tokens, decode_rows=step.decode_tokens, queued=step.queued
    )  # fmt: skip
