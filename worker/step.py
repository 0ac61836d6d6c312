"""Runs step plans: one batch through the decoder, then sampling, then the result message."""

import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from checkpoint.config import ModelConfig
from kernels.backend import Kernels
from kernels.reference.sampling import GREEDY_BELOW, Penalties, Sampled, SamplingBatch
from messages.plan import StepPlan
from messages.result import NON_FINITE, OK, UNMATCHED, ScoreColumns, StepResult
from messages.tokens import LogprobColumns
from transport.columns import I32, pack_f32, pack_i32, pack_u8
from transport.trace import Span
from worker.bias import sample_biased
from worker.decoder import Decoder, StepInput
from worker.memory import Cache
from worker.plan import PlanReader, Rows
from worker.scores import Found, Scored, compute, score_columns
from worker.slots import Slots
from worker.totals import Totals
from worker.tracing import Tracing, Work

AFTER_FAILURE = 0
"""Fed to a row whose logits were not finite, should a plan already on its way ask for more of it."""


class Engine:
    """Everything that lives on the device, and the slots. `reset` for a new session, then `run` its plans in order.

    Waits for each step: the engine for CPU, and what worker.resident is tested against.
    """

    def __init__(self, decoder: Decoder, cache: Cache, kernels: Kernels, max_slots: int, max_blocks: int, max_step_tokens: int) -> None:
        self.slots = Slots(max_slots, max_blocks, decoder.config.vocab, cache.k.device)
        self.cache = cache
        self.totals = Totals()
        self._deliver: Callable[[StepResult], object] = lambda result: None
        self._tracing: Tracing | None = None
        self._ended = 0.0
        self._decoder = decoder
        self._kernels = kernels
        self._reader = PlanReader(self.slots, cache.blocks, cache.block_size, max_step_tokens)

    @property
    def config(self) -> ModelConfig:
        return self._decoder.config

    @property
    def max_step_tokens(self) -> int:
        return self._reader.max_step_tokens

    def start(self, deliver: Callable[[StepResult], object], tracing: Tracing | None = None) -> None:
        """Give the results of `submit` to `deliver`."""
        self._deliver = deliver
        self._tracing = tracing

    def close(self) -> None:
        """There is nothing to end."""

    def check(self) -> None:
        """A step that failed has said so already."""

    def idle(self) -> bool:
        """There is nothing to get ready."""
        return False

    def submit(self, plan: StepPlan, queued: float = 0.0) -> None:
        """Run one plan and deliver its result. Raises worker.plan.PlanError."""
        self._deliver(self.run(plan, queued))

    def reset(self) -> None:
        """Forget every slot and expect step 1."""
        self._reader.reset()

    @torch.inference_mode()
    def run(self, plan: StepPlan, queued: float = 0.0) -> StepResult:
        """Apply and compute one plan that waited `queued` seconds. Raises worker.plan.PlanError; the session is unusable after that."""
        began = time.monotonic()
        rows, copies = self._reader.apply(plan)
        applied = time.monotonic()
        self._copy(*copies)
        prefills = len(rows.slot) - rows.decodes
        sampled = np.concatenate((np.flatnonzero(rows.sample), np.arange(prefills, len(rows.slot))))
        logits, scores = self._forward(rows, sampled) if len(rows.slot) else (None, None)
        self._advance(rows, prefills)
        result = StepResult(session=plan.session, step=plan.step, slot=b"", token=b"", status=b"", scores=scores)
        if logits is not None and len(sampled):
            result = self._sample(result, rows.slot[sampled], logits)
        ended = time.monotonic()
        seconds = ended - began
        self.totals = self.totals.with_step(len(rows.tokens), rows.decodes, seconds)
        if self._tracing is not None:
            work = Work(session=plan.session, step=plan.step, prefill_tokens=len(rows.tokens), decode_rows=rows.decodes, queued=queued)
            gap = applied - (self._ended or applied)
            self._tracing.trace.add((_spans, self._tracing, work, began, applied, ended, gap))
            self._ended = ended
        return msgspec.structs.replace(result, seconds=seconds, queued=queued)

    def _on_device(self, array: NDArray[Any]) -> Tensor:
        """The array as a tensor where the cache is."""
        return torch.from_numpy(array).to(self.cache.k.device)

    def _copy(self, source: I32, target: I32) -> None:
        if len(source):
            pair = self._on_device(source.astype(np.int64)), self._on_device(target.astype(np.int64))
            self._kernels.copy_blocks(self.cache.k, *pair)
            self._kernels.copy_blocks(self.cache.v, *pair)

    def _forward(self, rows: Rows, sampled: NDArray[np.int64]) -> tuple[Tensor, ScoreColumns | None]:
        """Logits [len(sampled), V] of the last token of the sampled rows, and the logprobs of prompt tokens that are wanted."""
        slots, config = self.slots, self._decoder.config
        decode = rows.slot[len(rows.slot) - rows.decodes :]
        tokens = np.concatenate((rows.tokens, np.where(slots.failed[decode], AFTER_FAILURE, slots.last[decode])))
        ends = np.cumsum(rows.count)
        positions = np.arange(len(tokens)) + np.repeat(rows.start - (ends - rows.count), rows.count)
        columns = -(-int((rows.start + rows.count).max()) // self.cache.block_size)
        table = self._on_device(slots.table[rows.slot, :columns])
        geometry = (rows.start.tolist(), rows.count.tolist(), rows.decodes, config.heads, config.kv_heads, self.cache.block_size)
        full = self._kernels.plan_attention(table, *geometry)
        windowed = full if config.window is None else self._kernels.plan_attention(table, *geometry, window=config.window)
        step = StepInput(
            tokens=self._on_device(tokens.astype(np.int64)),
            positions=self._on_device(positions),
            wanted=self._on_device(ends[sampled] - 1),
            full=full,
            windowed=windowed,
        )
        x = self._decoder.hidden(step, self.cache.k, self.cache.v)
        scores = None if rows.scored is None else self._score(x, rows.scored)
        return self._decoder.logits(x, step.wanted), scores

    def _score(self, x: Tensor, scored: Scored) -> ScoreColumns:
        columns = (self._on_device(column.astype(np.int64)) for column in (scored.index, scored.token, scored.pool_index))
        found = compute(self._decoder, self._kernels, x, scored, *columns)
        return score_columns(scored, Found(**{part.name: getattr(found, part.name).cpu() for part in fields(found)}))

    def _advance(self, rows: Rows, prefills: int) -> None:
        """Lengths, and what the rows that note their tokens have now (a decoded token was noted when it was sampled)."""
        self.slots.length[rows.slot] = rows.start + rows.count
        if not self.slots.noting:
            return
        parts = np.split(rows.tokens, np.cumsum(rows.count[:prefills])[:-1])
        for slot, start, part in zip(rows.slot[:prefills].tolist(), rows.start.tolist(), parts, strict=False):
            self.slots.note(slot, part, start)

    def _sample(self, result: StepResult, slot: I32, logits: Tensor) -> StepResult:
        slots = self.slots
        batch = self._sampling_batch(slot)
        bias = slots.biased.columns(slot, slots.length[slot]) if slots.biased.rows else []
        there = [self._on_device(column) for column in bias]
        wanted = slots.matching.wanted(slot, slots.length[slot] - slots.prompt_length[slot]) if slots.matching.rows else []
        masks = slots.matching.wait(wanted) if wanted else None
        mask = () if masks is None else (self._on_device(masks.row), self._on_device(masks.words))
        out = sample_biased(self._kernels, logits, batch, slots.biased.read(there) if there else None, mask)
        unmatched = slots.matching.unmatched(wanted, len(slot))
        finite = out.finite.cpu().numpy() & ~(slots.failed[slot] & ~unmatched)
        good = finite & ~unmatched
        token = np.where(good, out.token.cpu().numpy(), -1).astype(np.int32)
        slots.failed[slot[~good]] = True
        slots.last[slot] = np.where(good, token, AFTER_FAILURE)
        for one in wanted:
            if not good[one.index]:
                slots.matching.fail(one.row, "its logits are not finite")
        if slots.noting:
            for number, value, is_good in zip(slot.tolist(), token, good, strict=True):
                if is_good:
                    slots.note(number, np.array([value], np.int32), int(slots.length[number]))
        if wanted:
            slots.matching.wake()
        return msgspec.structs.replace(
            result,
            slot=pack_i32(slot),
            token=pack_i32(token),
            status=pack_u8(np.where(good, OK, np.where(finite, UNMATCHED, NON_FINITE))),
            logprobs=_logprob_columns(batch, out, good),
        )

    def _sampling_batch(self, slot: I32) -> SamplingBatch:
        slots = self.slots
        values = {name: column[slot] for name, column in slots.floats.items()}
        random = values["temperature"] >= GREEDY_BELOW
        filtered = random & ((slots.top_k[slot] > 0) | (values["top_p"] < 1) | (values["min_p"] > 0))
        logprobs = slots.logprobs[slot]
        asked = np.flatnonzero(logprobs >= 0)
        return SamplingBatch(
            temperature=self._on_device(values["temperature"]),
            top_p=self._on_device(values["top_p"]),
            top_k=self._on_device(slots.top_k[slot]),
            min_p=self._on_device(values["min_p"]),
            seed=self._on_device(slots.seed[slot]),
            position=self._on_device(slots.length[slot]),
            random=np.flatnonzero(random).tolist(),
            filtered=np.flatnonzero(filtered).tolist(),
            penalties=self._penalties(slot) if slots.penalties else None,
            logprob_rows=asked.tolist(),
            logprob_counts=logprobs[asked].tolist(),
        )

    def _penalties(self, slot: I32) -> Penalties | None:
        slots = self.slots
        row = [index for index, number in enumerate(slot.tolist()) if number in slots.penalties]
        if not row:
            return None
        owner = slot[row]
        states = [slots.penalties[number] for number in owner.tolist()]
        return Penalties(
            row=torch.tensor(row, device=self.cache.k.device),
            counts=torch.stack([state.counts for state in states]),
            seen=torch.stack([state.seen for state in states]),
            repetition=self._on_device(slots.floats["repetition_penalty"][owner]),
            presence=self._on_device(slots.floats["presence_penalty"][owner]),
            frequency=self._on_device(slots.floats["frequency_penalty"][owner]),
        )


def _spans(tracing: Tracing, work: Work, began: float, applied: float, ended: float, gap: float) -> list[Span]:
    return [*tracing.launched(work, began, applied, None, applied), tracing.computed(work, applied, ended, ended - applied, gap)]


def _logprob_columns(batch: SamplingBatch, out: Sampled, good: NDArray[np.bool_]) -> LogprobColumns | None:
    """Logprobs of the rows that asked and whose logits were finite; None when nobody did."""
    if out.chosen is None or out.top is None or out.top_ids is None:
        return None
    kept = [index for index, row in enumerate(batch.logprob_rows) if good[row]]
    if not kept:
        return None
    counts = [min(batch.logprob_counts[index], out.top.shape[1]) for index in kept]
    chosen, top, top_ids = out.chosen.cpu().numpy(), out.top.cpu().numpy(), out.top_ids.cpu().numpy()
    return LogprobColumns(
        row=pack_i32([batch.logprob_rows[index] for index in kept]),
        chosen=pack_f32(chosen[kept]),
        count=pack_i32(counts),
        top_ids=pack_i32(np.concatenate([top_ids[index, :count] for index, count in zip(kept, counts, strict=True)])),
        top=pack_f32(np.concatenate([top[index, :count] for index, count in zip(kept, counts, strict=True)])),
    )
