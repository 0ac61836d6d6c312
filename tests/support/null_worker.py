"""A worker without a model, for tests of the scheduler: it executes plans, checks the contract strictly and answers deterministically.

KV memory is simulated: a position holds the token that was computed there, and a sampled token is a pure function of the seed, the position and
all tokens read through the block table. A block given away too early, a chunk in the wrong place or a token lost shows up as other output
than that of `reference`.
"""

import zlib
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from messages.plan import Admissions, Attach, Prefills, Shutdown, StepPlan, ToWorker
from messages.result import NON_FINITE, OK, Attached, FromWorker, StepFailed, StepResult, WorkerReady
from messages.tokens import FINISH_END_TOKEN, FINISH_ERROR, FINISH_LENGTH, LogprobColumns
from transport.columns import pack_f32, pack_i32, pack_u8, view_f32, view_i32, view_i64, view_u8

POISON = -7
POISON_SEED_MARK = 1 << 40
"""A seed with this bit gets non-finite logits at the length in its lowest 10 bits."""


class ContractBrokenError(AssertionError):
    """The scheduler sent a plan that breaks the contract."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise ContractBrokenError(what)


def sample(seed: int, tokens: list[int], vocab: int) -> int | None:
    """The token after `tokens`, or None for non-finite logits."""
    if seed & POISON_SEED_MARK and len(tokens) == seed & 1023:
        return None
    return zlib.crc32(np.asarray(tokens, dtype="<i4").tobytes(), seed & 0xFFFF_FFFF) % vocab


def reference(seed: int, prompt: list[int], max_tokens: int | None, end_ids: list[int], context: int, vocab: int) -> tuple[list[int], int]:
    """What a request must give, alone: its tokens and its finish."""
    tokens = list(prompt)
    limit = context if max_tokens is None else min(context, len(prompt) + max_tokens)
    while True:
        token = sample(seed, tokens, vocab)
        if token is None:
            return tokens[len(prompt) :], FINISH_ERROR
        tokens.append(token)
        if token in end_ids:
            return tokens[len(prompt) :], FINISH_END_TOKEN
        if len(tokens) >= limit:
            return tokens[len(prompt) :], FINISH_LENGTH


@dataclass
class Row:
    """What a worker keeps of one slot."""

    seed: int
    prompt_len: int
    logprobs: int
    temperature: float
    table: list[int] = field(default_factory=list)
    length: int = 0
    last: int | None = None


@dataclass
class Touch:
    """Slots and blocks that a plan may touch, until its result has been delivered."""

    slots: set[int]
    blocks: set[int]


class NullWorker:
    """`receive` what the scheduler sends; `pending` holds messages for the scheduler, oldest first; `deliver` pops one.

    Plans are executed when they are received (a worker runs them in order, so the outcome is the same), but stay in flight until
    their results are delivered.
    """

    def __init__(self, attached: Attached, run_ahead: int = 1) -> None:
        self.geometry = attached
        self.run_ahead = run_ahead
        self.pending: deque[FromWorker] = deque()
        self.plans: list[StepPlan] = []
        self.fail_step_with: set[int] = set()
        self.rows: dict[int, Row] = {}
        self._session = 0
        self._step = 0
        self._decode: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._inflight: deque[Touch] = deque()
        self._kv = np.full((attached.blocks, attached.block_size), POISON, dtype=np.int32)
        self.pending.append(WorkerReady(worker=attached.worker))

    def deliver(self) -> FromWorker:
        message = self.pending.popleft()
        if isinstance(message, StepResult) and message.session == self._session:
            self._inflight.popleft()
        return message

    def restart(self, attached: Attached | None = None) -> None:
        """The process dies with everything it had to say, and comes back."""
        self.geometry = attached or self.geometry
        self.pending.clear()
        self._forget(0)
        self.pending.append(WorkerReady(worker=self.geometry.worker))

    def receive(self, message: ToWorker) -> None:
        match message:
            case Attach():
                self._forget(message.session)
                g = self.geometry
                self.pending.append(
                    Attached(
                        session=message.session,
                        worker=g.worker,
                        blocks=g.blocks,
                        block_size=g.block_size,
                        max_slots=g.max_slots,
                        max_blocks_per_slot=g.max_blocks_per_slot,
                        max_step_tokens=g.max_step_tokens,
                        context=g.context,
                        vocab=g.vocab,
                    )
                )
            case StepPlan():
                if message.session == self._session:
                    self._run(message)
            case Shutdown():
                raise ContractBrokenError("nobody asked the scheduler to shut the worker down")

    def _forget(self, session: int) -> None:
        self.rows.clear()
        self._inflight.clear()
        self._session, self._step = session, 0
        self._decode = np.empty(0, dtype=np.int32)
        self._kv = np.full((self.geometry.blocks, self.geometry.block_size), POISON, dtype=np.int32)

    def _run(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        require(plan.step == self._step + 1, f"step {plan.step} after {self._step}")
        self._step = plan.step
        require(len(self._inflight) <= self.run_ahead, f"{len(self._inflight)} plans in flight and one more")
        self._release(plan)
        if plan.admit is not None:
            self._admit(plan.admit)
        self._append(plan)
        require(plan.copies is None, "copies")
        prefilled, sampled, touched = self._prefill(plan.prefill)
        decoded = self._decode_rows(plan)
        require(not set(touched) & set(decoded), "a slot is prefilled and decoded in one step")
        require(0 < prefilled + len(decoded) <= self.geometry.max_step_tokens, f"{prefilled} + {len(decoded)} tokens in one step")
        self._inflight.append(Touch({*touched, *decoded}, {block for slot in (*touched, *decoded) for block in self.rows[slot].table}))
        if self.fail_step_with & {self.rows[slot].seed for slot in (*touched, *decoded)}:
            self.pending.append(StepFailed(session=self._session, step=plan.step, message="asked to fail"))
            self.pending.append(WorkerReady(worker=self.geometry.worker))
            self._session = 0
            return
        self.pending.append(self._sample(plan, sampled + decoded))

    def _release(self, plan: StepPlan) -> None:
        for slot in view_i32(plan.release).tolist():
            require(slot in self.rows, f"release of slot {slot}, which is empty")
            require(not any(slot in touch.slots for touch in self._inflight), f"release of slot {slot}, which is in flight")
            for block in self.rows.pop(slot).table:
                self._kv[block] = POISON

    def _admit(self, admit: Admissions) -> None:
        slots = view_i32(admit.slot).tolist()
        rows = len(slots)
        columns = (view_i32(admit.prompt_len, rows), view_i64(admit.seed, rows), view_i32(admit.logprobs, rows), view_f32(admit.temperature, rows))
        for column in (admit.top_p, admit.min_p, admit.presence_penalty, admit.frequency_penalty, admit.repetition_penalty, admit.top_k):
            require(len(column) == 4 * rows, "a sampling column is of another length")
        for slot, prompt_len, seed, logprobs, temperature in zip(slots, *columns, strict=True):
            require(0 <= slot < self.geometry.max_slots, f"slot {slot}")
            require(slot not in self.rows, f"slot {slot} admitted before it was released")
            require(not any(slot in touch.slots for touch in self._inflight), f"slot {slot} admitted while a plan in flight touches it")
            self.rows[slot] = Row(int(seed), int(prompt_len), int(logprobs), float(temperature))

    def _append(self, plan: StepPlan) -> None:
        if plan.append is None:
            return
        slots = view_i32(plan.append.slot)
        require(slots.size > 0, "empty appends")
        owned = {block for row in self.rows.values() for block in row.table}
        for slot, index, block in zip(slots, view_i32(plan.append.index, slots.size), view_i32(plan.append.block, slots.size), strict=True):
            require(int(slot) in self.rows, f"append to slot {slot}, which is empty")
            table = self.rows[int(slot)].table
            require(int(index) == len(table) < self.geometry.max_blocks_per_slot, f"append at {index} of a table of {len(table)}")
            require(0 <= block < self.geometry.blocks, f"block {block}")
            require(int(block) not in owned, f"block {block} has two owners")
            require(not any(int(block) in touch.blocks for touch in self._inflight), f"block {block} reused while a plan in flight touches it")
            owned.add(int(block))
            table.append(int(block))

    def _write(self, slot: int, token: int) -> None:
        row = self.rows[slot]
        require(row.length < self.geometry.context, f"position {row.length} beyond the context")
        require(row.length // self.geometry.block_size < len(row.table), f"position {row.length} of slot {slot} has no block")
        self._kv[row.table[row.length // self.geometry.block_size], row.length % self.geometry.block_size] = token
        row.length += 1

    def _prefill(self, prefill: Prefills | None) -> tuple[int, list[int], list[int]]:
        if prefill is None:
            return 0, [], []
        slots = view_i32(prefill.slot)
        count, flag = view_i32(prefill.count, slots.size), view_u8(prefill.sample, slots.size)
        tokens = view_i32(prefill.tokens, int(count.sum()))
        require(slots.size > 0 and len(set(slots.tolist())) == slots.size and bool((count > 0).all()), "bad prefills")
        offset = 0
        for slot, start, number in zip(slots.tolist(), view_i32(prefill.start, slots.size).tolist(), count.tolist(), strict=True):
            require(start == self.rows[slot].length and self.rows[slot].last is None, f"chunk at {start} of a row of {self.rows[slot].length}")
            for token in tokens[offset : offset + number].tolist():
                require(0 <= token < self.geometry.vocab, f"token {token}")
                self._write(slot, token)
            offset += number
        return offset, slots[flag == 1].tolist(), slots.tolist()

    def _decode_rows(self, plan: StepPlan) -> list[int]:
        rows = self._decode if plan.decode is None else view_i32(plan.decode)
        require(plan.decode is None or rows.size == 0 or not np.array_equal(rows, self._decode), "the same decode rows sent again")
        self._decode = rows
        require(len(set(rows.tolist())) == rows.size, "a slot decodes twice")
        for slot in rows.tolist():
            last = self.rows[slot].last
            require(last is not None, f"slot {slot} decodes before its prefill")
            self._write(slot, last or 0)
        return [int(slot) for slot in rows]

    def _history(self, row: Row) -> list[int]:
        flat = self._kv[row.table].reshape(-1)[: row.length].tolist() if row.table else []
        require(POISON not in flat, "a block was reused while its row still needs it")
        return [int(token) for token in flat]

    def _sample(self, plan: StepPlan, slots: list[int]) -> StepResult:
        tokens, status, asked = [], [], []
        for place, slot in enumerate(slots):
            row = self.rows[slot]
            token = sample(row.seed, self._history(row), self.geometry.vocab)
            row.last = 0 if token is None else token
            tokens.append(-1 if token is None else token)
            status.append(NON_FINITE if token is None else OK)
            if row.logprobs >= 0 and token is not None:
                asked.append((place, token, row.logprobs))
        return StepResult(
            session=plan.session, step=plan.step, slot=pack_i32(slots), token=pack_i32(tokens), status=pack_u8(status), logprobs=_logprobs(asked)
        )


def _logprobs(asked: list[tuple[int, int, int]]) -> LogprobColumns | None:
    """Made-up logprobs that name their token: chosen -token/8, alternatives token + 1, token + 2, ..."""
    if not asked:
        return None
    return LogprobColumns(
        row=pack_i32([place for place, _, _ in asked]),
        chosen=pack_f32([-token / 8 for _, token, _ in asked]),
        count=pack_i32([number for _, _, number in asked]),
        top_ids=pack_i32([token + 1 + i for _, token, number in asked for i in range(number)]),
        top=pack_f32([-i / 8 for _, _, number in asked for i in range(number)]),
    )
