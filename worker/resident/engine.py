"""Runs step plans on a GPU without ever waiting for it: one upload of changes, one launch for a decode step, results read on another thread."""

import gc
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace

import numpy as np
import torch
from torch import Tensor

from checkpoint.config import ModelConfig
from kernels.backend import Kernels
from kernels.prefill_attention import tile_tokens
from messages.plan import StepPlan
from transport.columns import I32, view_i32
from worker.bias import sample_biased
from worker.compilers import Compilers
from worker.decoder import Decoder
from worker.engine import DeviceError, StepError
from worker.memory import Cache, lacks_memory
from worker.plan import PlanReader, Rows
from worker.resident.arena import Arena, joined
from worker.resident.graphs import Graphs, Key, padded_sizes
from worker.resident.layout import lay_out
from worker.resident.parcel import Parcel, Parcels
from worker.resident.penalties import PooledSlots
from worker.resident.places import NOTHING, Places
from worker.resident.post import Post, Posted
from worker.resident.reader import Asked, Deliver, Launched, Reader, Scoring, ask
from worker.resident.short import Short, token_sizes
from worker.resident.steps import Steps, batch_of
from worker.resident.wishes import FILTERED, PLAIN, SEPARATE, Wishes, wishes_of
from worker.scores import Found, Scored, compute
from worker.totals import Totals
from worker.tracing import Tracing

DRAWN = 0
"""Stands in the host's slots for a last token that only the device knows."""
FEW_TOKENS, MANY_TOKENS = (16, 32, 64), 512
"""Short prompts, which take other kernels than a long one."""
REHEARSED = 1, 2, 8, 64, 256
"""Decode rows beside a prompt, between which kernels differ."""
FIRST_WORDS = 1 << 16
MOMENT_SECONDS = 0.02
SWITCH_SECONDS = 2e-4
"""How long the thread that launches and the one that reads results may keep each other waiting: Python's own 5 ms are many steps."""


class ResidentEngine:
    """Everything that lives on the device. `start`, then `submit` the plans of a session in order; `reset` begins a new one."""

    def __init__(
        self,
        decoder: Decoder,
        cache: Cache,
        kernels: Kernels,
        max_slots: int,
        max_blocks: int,
        max_step_tokens: int,
        compilers: Compilers | None = None,
        fill_up: bool | None = None,
    ) -> None:
        """`fill_up`: whether steps with short prompts are filled up to kinds that can be graphs; None: where there are graphs."""
        self._device = cache.k.device
        self.slots = PooledSlots(max_slots, max_blocks, decoder.config.vocab, self._device)
        self.cache = cache
        self._decoder = decoder
        self._kernels = kernels
        self._reader = PlanReader(self.slots, cache.blocks, cache.block_size, max_step_tokens)
        self._tile = tile_tokens(decoder.config.heads // decoder.config.kv_heads)
        self._arena = Arena(max_slots, max_blocks, cache.blocks, self._device)
        self._places = Places(self._arena)
        self._post = Post(self._arena)
        self._short_steps = Short(self._arena, token_sizes(decoder.config, max_step_tokens), self._tile)
        self._steps = Steps(decoder, cache, kernels, self._arena, self._post, self._short_steps)
        self._graphs = Graphs(self._device, max_slots)
        self._fill_up = self._graphs.usable if fill_up is None else fill_up
        self._parcels = Parcels(self._device, max_slots, FIRST_WORDS)
        self._wishes: Wishes | None = None  # of the step before, when that was of decode rows only
        self._results: Reader | None = None
        self._compilers = compilers  # still at work
        self._short = False  # the device had no memory for a step
        self._positions = max_blocks * cache.block_size

    @property
    def config(self) -> ModelConfig:
        return self._decoder.config

    @property
    def totals(self) -> Totals:
        return Totals() if self._results is None else self._results.totals

    @property
    def max_step_tokens(self) -> int:
        return self._reader.max_step_tokens

    @property
    def graphs(self) -> int:
        """Kinds of steps that are one launch by now."""
        return self._graphs.captured

    def start(self, deliver: Deliver, tracing: Tracing | None = None) -> None:
        """Give results to `deliver`, on another thread."""
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.collect()
        gc.freeze()  # a collection that goes through all of torch's objects would hold up several steps
        self._results = Reader(self._parcels, self.slots.matching, deliver, tracing)

    def close(self) -> None:
        if self._results is not None:
            self._results.close()

    def reset(self) -> None:
        """Forget every slot and expect step 1."""
        if self._short:
            self._make_room()
        self._reader.reset()
        self._wishes = None

    def check(self) -> None:
        """Raises DeviceError when a step failed on the device."""
        if self._results is not None and self._results.error is not None:
            raise DeviceError(str(self._results.error)) from self._results.error

    @torch.inference_mode()
    def submit(self, plan: StepPlan, queued: float = 0.0) -> None:
        """Launch one plan that waited `queued` seconds. Raises PlanError, StepError, and DeviceError when the device is of no use any more."""
        self.check()
        began = time.monotonic()
        try:
            rows, copies = self._reader.apply(plan)
            self._launch(plan, rows, copies, queued, (began, time.monotonic()))
        except RuntimeError as error:  # what torch and Triton raise for every error of the device
            if lacks_memory(error):
                raise self._too_large(str(error)) from error
            raise DeviceError(str(error)) from error

    def _too_large(self, why: str) -> StepError:
        """Take smaller steps from the next session on; the error to raise for this one."""
        self._short = True
        self._reader.limit(max(self.slots.count, self.max_step_tokens // 2))
        return StepError(f"no memory for it; from now on steps have at most {self.max_step_tokens} tokens: {why.splitlines()[0]}")

    def _make_room(self) -> None:
        """Give back what steps and graphs kept. The step that failed may have been launched in part, so nothing is known of the rows there."""
        self._short = False
        self._places.forget()
        self._post.forget()
        self._graphs.clear()

    @torch.inference_mode()
    def idle(self) -> bool:
        """Nothing is to be done: make ready for a kind of step that has not come yet. False when all have.

        Its kernels are waited for, but never so long that a plan would have to wait.
        """
        if self._compilers is not None:
            if not self._compilers.ended(MOMENT_SECONDS):
                return True
            self._compilers = None
        key = next((key for key in self._kinds(self._graphs.sizes) if self._graphs.lacks(key)), None)
        if key is None:
            return False
        try:
            self._prepare(key)
        except RuntimeError as error:
            if not lacks_memory(error):
                raise DeviceError(str(error)) from error
            self._graphs.refuse(key, "no memory")
            self._places.forget()
        return True

    def _kinds(self, sizes: list[int]) -> Iterator[Key]:
        """The kinds of steps that usual requests need, the likeliest first."""
        yield from (Key(size, PLAIN) for size in sizes)
        yield from (Key(size, FILTERED) for size in sizes)
        if sizes:
            yield from self._short_steps.kinds(PLAIN)

    def _ready(self, key: Key) -> None:
        """Let a step be one of dummies."""
        if key.tokens:
            self._short_steps.put_dummies(key)

    def _prepare(self, key: Key) -> None:
        """Run a step of dummy rows and make its graph."""
        parcel = self._parcels.take()
        self._write(parcel, [] if key.tokens else self._places.changes(NOTHING, key.rows), [])
        self._post.forget()
        self._ready(key)
        for _ in range(2):
            self._graphs.run(key, lambda: self._steps.run(key))
        parcel.done.record()
        parcel.done.synchronize()
        self._parcels.give(parcel)

    @torch.inference_mode()
    def dry_run(self, tokens: int, decodes: int = 0, filtered: bool = True, draws: int | None = None) -> None:
        """The launches of a step of `tokens` prompt tokens and `decodes` decode rows of dummies, with as many draws, or one for every slot."""
        size = min(tokens, self._positions)
        count = np.array([size] * (tokens // size) + [tokens % size] * (tokens % size > 0) + [1] * decodes, np.int64)
        dummies = np.full(len(count), self._arena.dummy, np.int32)
        sample = np.ones(len(count) - decodes, np.bool_)
        rows = Rows(slot=dummies, start=0 * count, count=count, sample=sample, tokens=np.zeros(tokens, np.int32), decodes=decodes)
        layout = lay_out(rows, np.zeros(min(draws or self.slots.count, tokens + decodes), np.int64), self._tile)
        parcel = self._parcels.take()
        columns = self._write(parcel, [], layout.columns)
        self._steps.mixed(columns, decodes, filtered)
        parcel.done.record()
        parcel.done.synchronize()
        self._parcels.give(parcel)

    @torch.inference_mode()
    def begin(self) -> None:
        """Run a change of the state, a short prompt and a decode step of one row, all dummies. Before there are rows."""
        self._kernels.write_words(self._arena.words, self._arena.words.new_zeros(2, 1))
        for key in (self._short_steps.least, Key(1, PLAIN)):
            self._ready(key)
            self._steps.run(key)
        self._post.forget()

    @torch.inference_mode()
    def rehearse(self) -> None:
        """Launch all usual kinds of steps, those first that a worker meets first. For launches that only say which kernels there are."""
        self.begin()
        for tokens in (*FEW_TOKENS, MANY_TOKENS, self.max_step_tokens):
            for filtered in (False, True):
                self.dry_run(min(tokens, self.max_step_tokens), filtered=filtered)
        for decodes in (size for size in REHEARSED if size <= self.slots.count):
            self.dry_run(min(FEW_TOKENS[0], self.max_step_tokens), decodes)
        for key in self._kinds(padded_sizes(self.slots.count)):
            self._steps.run(key)
        for key in (*self._short_steps.kinds(PLAIN), *self._short_steps.kinds(FILTERED)):
            self._steps.run(key)
        self.dry_run(1)
        self._rehearse_masks()

    def _rehearse_masks(self) -> None:
        vocab = self.config.vocab
        row, words = (torch.empty(size, dtype=torch.int32, device=self._device) for size in ((1,), (1, -(-vocab // 32))))
        self._kernels.apply_mask(self._steps.run(Key(1, SEPARATE)), row, words)

    @torch.inference_mode()
    def dry_graph(self) -> None:
        """The graphs of the largest steps."""
        for key in (Key(self._graphs.padded(self.slots.count), FILTERED), self._short_steps.largest) * 2:
            self._graphs.run(key, lambda key=key: self._steps.run(key))  # type: ignore[misc]

    def _launch(self, plan: StepPlan, rows: Rows, copies: tuple[I32, I32], queued: float, applying: tuple[float, float]) -> None:
        parcel = self._parcels.take()
        prompts = len(rows.slot) - rows.decodes
        pairs = self._changes(plan, rows, prompts)
        mixed = prompts > 0 or len(copies[0]) > 0
        slot, sampled = rows.slot, NOTHING
        if mixed:
            sampled = np.concatenate((np.flatnonzero(rows.sample), np.arange(prompts, len(slot))))
            slot = slot[sampled]
        self.slots.last[slot] = DRAWN
        same = plan.decode is None and plan.admit is None and not prompts and not self.slots.biased.rows and not self.slots.matching.rows
        wishes = self._wishes if same and self._wishes is not None else wishes_of(self.slots, slot)
        self._wishes = None if prompts else wishes
        scoring = posted = None
        if mixed:
            token, asked, scoring = self._mixed(parcel, rows, sampled, wishes, pairs, copies)
        else:
            token, asked, posted = self._decoding(parcel, rows, wishes, pairs)
        if len(slot) and posted is None:
            parcel.download(token, len(slot))
        parcel.done.record()
        assert self._results is not None  # `start` comes first
        self._results.put(
            Launched(
                session=plan.session, step=plan.step, slot=slot, parcel=parcel, prefill_tokens=len(rows.tokens), decode_tokens=rows.decodes,
                queued=queued, posted=posted, asked=asked, scoring=scoring, matched=wishes.matched, applying=applying, launched=time.monotonic(),
            )
        )  # fmt: skip

    # Changes

    def _changes(self, plan: StepPlan, rows: Rows, prompts: int) -> list[I32]:
        """Bring the host's lengths up to the end of this step, and say what the device cannot know by itself."""
        slots, pairs = self.slots, list[I32]()
        slots.length[rows.slot] = rows.start + rows.count
        chunks = fresh = rows.slot[:prompts]
        if plan.admit is not None:
            admitted = view_i32(plan.admit.slot)
            pairs += self._arena.admitted(admitted, slots)
            fresh = np.unique(np.concatenate((fresh, admitted)))
        if len(fresh):
            pairs.append(self._arena.column("length", fresh, slots.length[fresh].astype(np.int32)))
        if plan.append is not None:
            pairs.append(self._arena.appended(view_i32(plan.append.slot), view_i32(plan.append.index), slots.table))
        if slots.noting and prompts:
            parts = np.split(rows.tokens, np.cumsum(rows.count[:prompts])[:-1])
            for slot, start, part in zip(chunks.tolist(), rows.start.tolist(), parts, strict=False):
                slots.note(slot, part, start)
        return pairs

    def _write(self, parcel: Parcel, pairs: list[I32], columns: Sequence[I32]) -> list[Tensor]:
        """Send everything up at once and apply the changes; gives the columns on the device."""
        began = time.monotonic()
        there: list[Tensor] = []
        pairs = pairs + self._post.changes()
        if pairs or columns:
            changes = joined(pairs)
            words, *there = parcel.upload([changes, *columns])
            if changes.size:
                self._kernels.write_words(self._arena.words, words)
        parcel.begun.record()  # only now: a device that waits for the host is not at work
        parcel.sending = began, time.monotonic()
        return there

    # Steps

    def _decoding(self, parcel: Parcel, rows: Rows, wishes: Wishes, pairs: list[I32]) -> tuple[Tensor, Asked | None, Posted | None]:
        """A step of decode rows only: from its graph, which posts their tokens, but for sampling that few rows ask for."""
        size = self._graphs.padded(len(rows.slot)) if len(rows.slot) else 0
        there = self._write(parcel, pairs + self._places.changes(rows.slot, size), [*wishes.columns, *wishes.bias])
        if not size:
            return self._arena.rows[:0], None, None
        while wishes.mode != SEPARATE and not self._post.room(MOMENT_SECONDS):
            self.check()
        key = Key(size, wishes.mode)
        out = self._graphs.run(key, lambda: self._steps.run(key))
        if wishes.mode != SEPARATE:
            return out, None, self._post.count()
        count = len(rows.slot)
        return *self._sample(parcel, out[:count], self._arena.rows[:count], wishes, there), None

    def _mixed(
        self, parcel: Parcel, rows: Rows, sampled: np.ndarray, wishes: Wishes, pairs: list[I32], copies: tuple[I32, I32]
    ) -> tuple[Tensor, Asked | None, Scoring | None]:
        """A step with prompt chunks or block copies: from a graph if it is short, else launch by launch."""
        layout = lay_out(rows, sampled, self._tile) if len(rows.slot) else None
        key = self._filled_up(rows, wishes, copies)
        if key is not None and layout is not None:
            (packed,) = self._write(parcel, pairs, [self._short_steps.pack(layout, rows.decodes, key)])
            self._short_steps.put(packed)
            return self._graphs.run(key, lambda: self._steps.run(key)), None, None
        columns = [] if layout is None else layout.columns
        asked = rows.scored
        scored = [] if asked is None else [asked.index.astype(np.int32), asked.token, asked.pool_index.astype(np.int32)]
        there = self._write(parcel, pairs, [*copies, *columns, *wishes.columns, *wishes.bias, *scored])
        if len(copies[0]):
            source, target = there[0].long(), there[1].long()
            self._kernels.copy_blocks(self.cache.k, source, target)
            self._kernels.copy_blocks(self.cache.v, source, target)
        if layout is None:
            return there[0], None, None
        drawn = there[7]
        x = self._steps.mixed_hidden(there[2:8], rows.decodes)
        scoring = None if asked is None else self._score(parcel, x, asked, there[-3:])
        if not len(drawn):
            return drawn, None, scoring
        return *self._sample(parcel, self._decoder.logits(x, there[6]), drawn, wishes, there[8 : len(there) - len(scored)]), scoring

    def _filled_up(self, rows: Rows, wishes: Wishes, copies: tuple[I32, I32]) -> Key | None:
        """The kind of graph for a step with prompts; None when there is none."""
        if not self._fill_up or wishes.mode == SEPARATE or rows.scored is not None or len(copies[0]) or not len(rows.slot):
            return None
        return self._short_steps.key(len(rows.tokens), len(rows.slot) - rows.decodes, rows.decodes, wishes.mode)

    def _score(self, parcel: Parcel, x: Tensor, scored: Scored, columns: list[Tensor]) -> Scoring:
        found = compute(self._decoder, self._kernels, x, scored, *(column.long() for column in columns))
        names = [part.name for part in fields(found)]
        return Scoring(scored=scored, found=Found(**dict(zip(names, parcel.fetch("scored", [getattr(found, name) for name in names]), strict=True))))

    # Sampling

    def _sample(self, parcel: Parcel, logits: Tensor, slot: Tensor, wishes: Wishes, there: list[Tensor]) -> tuple[Tensor, Asked | None]:
        """Sample with all that the rows wish for; `there`: the wishes' columns on the device, which computes meanwhile when masks are waited for."""
        batch = batch_of(self._kernels.sampling_columns(self._arena.columns, slot), wishes.filtered)
        batch = replace(batch, logprob_rows=wishes.logprob_rows, logprob_counts=wishes.logprob_counts)
        own = len(wishes.columns)
        if wishes.penal:
            row, owner, factors = there[:own]
            batch = replace(batch, penalties=self.slots.gather(row, owner, factors.view(torch.float32)))
        bias = self.slots.biased.read(there[own:]) if wishes.bias else None
        mask: tuple[Tensor, ...] = ()
        if wishes.matched:
            masks = self.slots.matching.wait(wishes.matched, self.check)
            mask = tuple(parcel.upload_late([masks.row, masks.words]))
        out = sample_biased(self._kernels, logits, batch, bias, mask)
        token = self._kernels.finish_rows(self._arena.columns, slot, out.token, out.finite)
        if wishes.penal:
            self.slots.sampled(owner, token[row.long()])
        if wishes.bias:
            self.slots.biased.sampled(there[own:], token)
        return token, ask(parcel, out, wishes)
