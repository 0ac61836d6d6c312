"""Reads step plans: checks every column against the slots and the pool, and applies the changes. A plan that breaks the contract raises."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.ma  # np.unique imports it at its first call, which a step waited for
from numpy.typing import NDArray

from messages.plan import POOLED, Admissions, Appends, Biases, Copies, Matches, Prefills, Scores, StepPlan
from transport.columns import F32, I32, I64, ColumnError, view_f32, view_i32, view_i64, view_slots, view_u8
from worker.bias import REMEMBERED, RowBias, pad_words
from worker.scores import Scored
from worker.slots import FLOATS, NO_BLOCK, NO_TOKEN, Slots


class PlanError(Exception):
    """The plan cannot be run: a bad column, an id out of range, or rows in a state that does not fit."""


NOTHING: I32 = np.zeros(0, np.int32)
NO_FLAGS: NDArray[np.bool_] = np.zeros(0, np.bool_)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of one step, prefills first: slot, start position and token count per row, `sample` flags of the prefills, prefill tokens,
    and the prompt positions whose logprobs are wanted."""

    slot: I32
    start: I64
    count: I64
    sample: NDArray[np.bool_]
    tokens: I32
    decodes: int
    scored: Scored | None = None


def _require(condition: bool | np.bool_, message: str) -> None:
    if not condition:
        raise PlanError(message)


def _in_range(values: NDArray[np.integer], limit: int, what: str) -> None:
    _require(len(values) == 0 or (values.min() >= 0 and values.max() < limit), f"{what} outside 0..{limit - 1}")


def _unique(values: I32 | I64, what: str) -> None:
    _require(len(np.unique(values)) == len(values), f"{what} named twice")


class PlanReader:
    """Applies plans of one session to `slots`, over a pool of `blocks` blocks of `block_size` tokens."""

    def __init__(self, slots: Slots, blocks: int, block_size: int, max_step_tokens: int) -> None:
        self._slots = slots
        self._blocks, self._block_size, self._max_step_tokens = blocks, block_size, max_step_tokens
        self._decode = NOTHING
        self._ones: I64 | None = None  # one for each decode row, when these were checked and have not changed since
        self._step = 0

    @property
    def max_step_tokens(self) -> int:
        return self._max_step_tokens

    def limit(self, tokens: int) -> None:
        """Take steps of at most `tokens` tokens from now on."""
        self._max_step_tokens = tokens

    def reset(self) -> None:
        """Begin a session: no slot is admitted, the next step is 1."""
        self._slots.clear()
        self._decode = NOTHING
        self._ones = None
        self._step = 0

    def apply(self, plan: StepPlan) -> tuple[Rows, tuple[I32, I32]]:
        """Release, admit and append; gives the rows to run and the copies to make (source, target). Raises PlanError."""
        try:
            return self._apply(plan)
        except ColumnError as error:
            raise PlanError(str(error)) from error

    def _apply(self, plan: StepPlan) -> tuple[Rows, tuple[I32, I32]]:
        _require(plan.step == self._step + 1, f"step {plan.step} after step {self._step}")
        self._step = plan.step
        if plan.release or plan.admit is not None or plan.decode is not None:
            self._ones = None
        if plan.release:
            release = view_i32(plan.release)
            _in_range(release, self._slots.count, "released slot")
            self._slots.release(release)
        if plan.admit is not None:
            self._admit(plan.admit)
            if plan.bias is not None:
                self._bias(view_i32(plan.admit.slot), plan.bias)
            if plan.match is not None:
                self._match(view_i32(plan.admit.slot), plan.match)
            self._seen(plan.admit)
        if plan.append is not None:
            self._append(plan.append)
        copies = (NOTHING, NOTHING) if plan.copies is None else self._copies(plan.copies)
        self._decode = self._decode if plan.decode is None else view_slots(plan.decode)
        rows = self._rows(plan.prefill, self._decode)
        if plan.scores is not None:
            rows = replace(rows, scored=self._scored(rows, plan.scores))
        return rows, copies

    def _admit(self, admit: Admissions) -> None:
        slots = self._slots
        slot = view_i32(admit.slot)
        count = len(slot)
        _in_range(slot, slots.count, "admitted slot")
        _unique(slot, "admitted slot")
        _require(not slots.admitted[slot].any(), "admitted a slot that is in use")
        prompt_length, seed, top_k = view_i32(admit.prompt_len, count), view_i64(admit.seed, count), view_i32(admit.top_k, count)
        logprobs = view_i32(admit.logprobs, count)
        floats: dict[str, F32] = {name: view_f32(getattr(admit, name), count) for name in FLOATS}
        _require((prompt_length >= 1).all() and (seed >= 0).all() and (top_k >= 0).all(), "negative prompt length, seed or top_k")
        _require((logprobs >= -1).all() and (logprobs <= slots.vocab).all(), "logprobs out of range")
        _require(all(np.isfinite(column).all() for column in floats.values()), "a sampling value is not finite")
        _require((floats["temperature"] >= 0).all() and (floats["repetition_penalty"] > 0).all(), "temperature or repetition penalty too small")
        slots.admit(slot)
        slots.prompt_length[slot], slots.seed[slot], slots.top_k[slot], slots.logprobs[slot] = prompt_length, seed, top_k, logprobs
        for name, column in floats.items():
            slots.floats[name][slot] = column
        penal = (floats["presence_penalty"] != 0) | (floats["frequency_penalty"] != 0) | (floats["repetition_penalty"] != 1)
        for number in slot[penal].tolist():
            slots.penalise(number)

    def _bias(self, admitted: I32, bias: Biases) -> None:
        slot, token = view_i32(bias.slot), view_i32(bias.token)
        closed, count = view_u8(bias.closed, len(slot)) != 0, view_i32(bias.count, len(slot))
        value, since = view_f32(bias.value, len(token)), view_i32(bias.since, len(token))
        word_slot, word_tokens = view_i32(bias.word_slot), view_i32(bias.word_tokens)
        word_count = view_i32(bias.word_count, len(word_slot))
        _unique(slot, "slot of a bias")
        _require(np.isin(slot, admitted).all() and np.isin(word_slot, slot).all(), "bias of a row that is not admitted in this plan")
        _require((count >= 0).all() and count.sum() == len(token), "biased tokens do not fit their rows")
        _require(((word_count > 1) & (word_count <= REMEMBERED + 1)).all() and word_count.sum() == len(word_tokens), "words do not fit their rows")
        _in_range(token, self._slots.vocab, "biased token")
        _in_range(word_tokens, self._slots.vocab, "token of a word")
        _unique(np.repeat(slot, count).astype(np.int64) * self._slots.vocab + token, "biased token")
        _require((value < np.inf).all() and not closed[count == 0].any(), "a bias that is not a number, or a closed row without tokens")
        words = np.split(word_tokens, np.cumsum(word_count)[:-1]) if len(word_slot) else []
        ends = np.cumsum(count)
        for number, end, size, is_closed in zip(slot.tolist(), ends.tolist(), count.tolist(), closed.tolist(), strict=True):
            part = slice(end - size, end)
            own = [word for owner, word in zip(word_slot.tolist(), words, strict=True) if owner == number]
            row = RowBias(closed=is_closed, token=token[part], value=value[part], since=since[part], words=pad_words(own))
            self._slots.biased.admit(number, row)

    def _match(self, admitted: I32, match: Matches) -> None:
        slot = view_i32(match.slot)
        grammar = view_i32(match.grammar, len(slot))
        _unique(slot, "slot of a grammar")
        _require(np.isin(slot, admitted).all(), "a grammar of a row that is not admitted in this plan")
        _require(self._slots.matching.knows(grammar), "a grammar that is not there")
        for number, which in zip(slot.tolist(), grammar.tolist(), strict=True):
            self._slots.matching.admit(number, which)
        self._slots.matching.wake()

    def _scored(self, rows: Rows, scores: Scores) -> Scored:
        slot = view_i32(scores.slot)
        start, count, top = (view_i32(column, len(slot)) for column in (scores.start, scores.count, scores.top))
        tokens, prompts = view_i32(scores.tokens), rows.slot[: len(rows.slot) - rows.decodes]
        _require(len(slot) > 0 and np.isin(slot, prompts).all(), "scores of a row that has no prompt in this step")
        _unique(slot, "slot of scores")
        place = np.array([int(np.flatnonzero(prompts == number)[0]) for number in slot.tolist()])
        first = start - rows.start[place]
        pooled = top == POOLED
        _require((count >= 1).all() and count[~pooled].sum() == len(tokens), "scored tokens do not fit their rows")
        _require(((first >= 0) & (first + count <= rows.count[place])).all(), "scores outside a row's chunk")
        _require(((top >= POOLED) & (top <= self._slots.vocab)).all(), "alternatives of scores out of range")
        _in_range(tokens, self._slots.vocab, "scored token")
        begin = (np.cumsum(rows.count) - rows.count)[place] + first
        index, pool_index = (
            np.concatenate([np.arange(0), *(np.arange(one, one + size) for one, size in zip(begin[which], count[which], strict=True))])
            for which in (~pooled, pooled)
        )
        return Scored(
            asked=scores, index=index, token=tokens, count=count[~pooled], top=top[~pooled], pool_index=pool_index, pool_count=count[pooled]
        )

    def _seen(self, admit: Admissions) -> None:
        slot = view_i32(admit.seen_slot)
        count, tokens = view_i32(admit.seen_count, len(slot)), view_i32(admit.seen_tokens)
        _in_range(slot, self._slots.count, "slot of seen tokens")
        _require(self._slots.admitted[slot].all() and (count >= 0).all() and count.sum() == len(tokens), "seen tokens do not fit their rows")
        _in_range(tokens, self._slots.vocab, "seen token")
        for number, part in zip(slot.tolist(), np.split(tokens, np.cumsum(count)[:-1]), strict=False):
            self._slots.note(number, part, 0)

    def _append(self, append: Appends) -> None:
        slot = view_i32(append.slot)
        index, block = view_i32(append.index, len(slot)), view_i32(append.block, len(slot))
        _in_range(slot, self._slots.count, "slot of an append")
        _in_range(index, self._slots.table.shape[1], "block table index")
        _in_range(block, self._blocks, "block")
        _require(self._slots.admitted[slot].all(), "append to a slot that is not admitted")
        self._slots.table[slot, index] = block

    def _copies(self, copies: Copies) -> tuple[I32, I32]:
        source = view_i32(copies.source)
        target = view_i32(copies.target, len(source))
        _in_range(source, self._blocks, "source block")
        _in_range(target, self._blocks, "target block")
        _unique(target, "target block")
        return source, target

    def _rows(self, prefill: Prefills | None, decode: I32) -> Rows:
        slots = self._slots
        ones = self._ones
        if ones is None:
            _in_range(decode, slots.count, "slot")
            _require(slots.admitted[decode].all(), "a row's slot is not admitted")
            _require((slots.last[decode] != NO_TOKEN).all(), "decode of a row that has no token yet")
            ones = self._ones = np.ones(len(decode), np.int64)
        start = slots.length[decode]
        self._grown(decode, start)
        if prefill is None:
            self._fits(len(decode))
            return Rows(slot=decode, start=start, count=ones, sample=NO_FLAGS, tokens=NOTHING, decodes=len(decode))
        slot, first, count, sample, tokens = self._chunks(prefill)
        every = np.concatenate((slot, decode))
        _unique(every, "slot")
        self._fits(len(tokens) + len(decode))
        starts, counts = np.concatenate((first, start)), np.concatenate((count, ones))
        return Rows(slot=every, start=starts, count=counts, sample=sample, tokens=tokens, decodes=len(decode))

    def _fits(self, tokens: int) -> None:
        _require(tokens <= self._max_step_tokens, f"more than {self._max_step_tokens} tokens in one step")

    def _chunks(self, prefill: Prefills) -> tuple[I32, I64, I64, NDArray[np.bool_], I32]:
        slots = self._slots
        slot, tokens = view_i32(prefill.slot), view_i32(prefill.tokens)
        start, count = view_i32(prefill.start, len(slot)).astype(np.int64), view_i32(prefill.count, len(slot)).astype(np.int64)
        sample = view_u8(prefill.sample, len(slot)) != 0
        _in_range(slot, slots.count, "slot")
        _require(slots.admitted[slot].all(), "a row's slot is not admitted")
        _require((count >= 1).all() and count.sum() == len(tokens), "prefill tokens do not fit their rows")
        _in_range(tokens, slots.vocab, "prefill token")
        length = slots.length[slot]
        _require((start >= 0).all(), "negative start")
        _require(((length == 0) | (start == length)).all(), "a prefill does not start where its row ends")
        _require((slots.last[slot] == NO_TOKEN).all(), "prefill of a row that is decoding")
        self._covered(slot, start + count)
        return slot, start, count, sample, tokens

    def _grown(self, slot: I32, length: I64) -> None:
        """The block table names a block for position `length` of each row, as it did for all before."""
        column = length // self._block_size
        _require(not len(slot) or int(column.max()) < self._slots.table.shape[1], "a row is longer than the block table")
        _require((self._slots.table[slot, column] != NO_BLOCK).all(), "a row's block table does not cover its length")

    def _covered(self, slot: I32, end: I64) -> None:
        """The block table names a block for every position below `end`."""
        needed = -(-end // self._block_size)
        _require((needed <= self._slots.table.shape[1]).all(), "a row is longer than the block table")
        columns = int(needed.max(initial=0))
        missing = (self._slots.table[slot, :columns] == NO_BLOCK) & (np.arange(columns)[None] < needed[:, None])
        _require(not missing.any(), "a row's block table does not cover its length")
