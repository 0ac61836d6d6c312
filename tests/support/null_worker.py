"""A worker without a model, for tests of the scheduler: it executes plans, checks the contract strictly and answers deterministically.

KV memory is simulated: a position holds its token and a checksum of all tokens up to it, as real KV depends on all that precedes it, and a
sampled token is a pure function of seed, prompt length and the checksum read through the block table. A block given away too early, shared
with the wrong history or written by two rows, a chunk in the wrong place or a token lost breaks a check here, or shows up as other output
than that of `tests.support.null_answers.reference`.

Memory keeps its content when a row is released, for the scheduler may hold it in its prefix cache; what is read is checked instead.
"""

from array import array
from collections import deque
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from messages.plan import POOLED, Admissions, Attach, Biases, Copies, Matches, Prefills, Prepare, Scores, Shutdown, StepPlan, ToWorker
from messages.result import NON_FINITE, OK, UNMATCHED, Attached, FromWorker, Prepared, ScoreColumns, StepFailed, StepResult, WorkerReady
from tests.support.null_answers import draw, logprobs_of
from tests.support.null_memory import CELL_BYTES, ContractBrokenError, Memory, Row, cells, require
from transport.columns import pack_f32, pack_i32, pack_u8, view_f32, view_i32, view_i64, view_slots, view_u8

REFUSED, DEADLY, LOST = "refused", "deadly", "lost"
"""How programs begin that something is wrong with."""
SECONDS_PER_TOKEN = 0.001


@dataclass(frozen=True, slots=True)
class Touch:
    """Slots and blocks that a plan may touch, until its result has been delivered."""

    slots: frozenset[int]
    blocks: frozenset[int]


class NullWorker:
    """`receive` what the scheduler sends; `pending` holds messages for the scheduler, oldest first; `deliver` pops one.

    Plans are executed when they are received (a worker runs them in order, so the outcome is the same), but stay in flight until
    their results are delivered. `run_ahead`: plans in flight at once. A row with a seed in `fail_step_with` makes its step fail, one in `die_with`
    ends the process (`deaths` counts). `admitted`: the columns every seed has been admitted with.
    `computed`, `hits`: tokens prefilled, and tokens that rows took over from blocks computed before; `copies`: blocks copied; `swaps`: table
    entries changed to another block of the same content; `seen`: rows that were told what they have seen. `biased`: the changes to logits that
    every seed has been admitted with, `matched` its program. A program that begins with REFUSED cannot be compiled, one that begins with DEADLY ends
    the process when it is, and one that begins with LOST cannot be followed beyond its third token.
    """

    def __init__(self, attached: Attached, run_ahead: int = 2) -> None:
        self.geometry = attached
        self.run_ahead = run_ahead
        self.pending: deque[FromWorker] = deque()
        self.plans: list[StepPlan] = []
        self.fail_step_with: set[int] = set()
        self.die_with: set[int] = set()
        self.deaths = 0
        self.rows: dict[int, Row] = {}
        self.admitted: dict[int, set[tuple[float, ...]]] = {}
        self.biased: dict[int, set[tuple[object, ...]]] = {}
        self.matched: dict[int, set[str]] = {}
        self.prepared: dict[int, str] = {}
        self.computed = self.hits = self.copies = self.swaps = self.seen = 0
        self._forget(0)
        self.pending.append(WorkerReady(worker=attached.worker, incarnation=attached.incarnation))

    def deliver(self) -> FromWorker:
        message = self.pending.popleft()
        if isinstance(message, StepResult) and message.session == self._session:
            for block in self._inflight.popleft().blocks:
                self._memory.touched[block] -= 1
        return message

    def in_flight(self) -> set[int]:
        """Seeds of the rows that plans in flight touch."""
        return {self.rows[slot].seed for touch in self._inflight for slot in touch.slots}

    def restart(self, attached: Attached | None = None) -> None:
        """The process dies with everything it had to say, and comes back as the next incarnation."""
        self.geometry = replace(attached or self.geometry, incarnation=self.geometry.incarnation + 1)
        self.pending.clear()
        self._forget(0)
        self.pending.append(WorkerReady(worker=self.geometry.worker, incarnation=self.geometry.incarnation))

    def receive(self, message: ToWorker) -> None:
        match message:
            case Attach():
                self._forget(message.session)
                self.pending.append(replace(self.geometry, session=message.session))
            case Prepare():
                if message.session == self._session:
                    self._prepare(message)
            case StepPlan():
                if message.session == self._session:
                    self._run(message)
            case Shutdown():
                raise ContractBrokenError("nobody asked the scheduler to shut the worker down")

    def _prepare(self, order: Prepare) -> None:
        require(order.grammar not in self.prepared, f"grammar {order.grammar} is prepared twice")
        require(order.program not in self.prepared.values(), "a program is prepared twice")
        used = {row.grammar for row in self.rows.values()}
        for number in order.forget:
            require(number in self.prepared and number not in used, f"grammar {number}, which is to be forgotten, is not there or is needed")
            del self.prepared[number]
        if order.program.startswith(DEADLY):
            self.deaths += 1
            self.restart()
            return
        refused = order.program.startswith(REFUSED)
        if not refused:
            self.prepared[order.grammar] = order.program
        self.pending.append(Prepared(session=self._session, grammar=order.grammar, problem="asked to refuse" if refused else ""))

    def _forget(self, session: int) -> None:
        self.rows.clear()
        self.prepared.clear()
        self._session, self._step = session, 0
        self._decode: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._inflight: deque[Touch] = deque()
        self._sources: set[int] = set()
        self._memory = Memory(self.geometry.blocks, self.geometry.block_size)

    def _run(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        require(plan.step == self._step + 1, f"step {plan.step} after {self._step}")
        self._step = plan.step
        require(len(self._inflight) < self.run_ahead, f"{len(self._inflight)} plans in flight and one more")
        self._release(plan)
        if plan.admit is not None:
            self._admit(plan.admit)
            if plan.bias is not None:
                self._bias(plan.bias, view_i32(plan.admit.slot).tolist())
            if plan.match is not None:
                self._match(plan.match, view_i32(plan.admit.slot).tolist())
            self._note_seen(plan.admit)
        self._append(plan)
        copied = self._copy(plan.copies)
        prefilled, sampled, touched = self._prefill(plan.prefill)
        decoded = self._decode_rows(plan)
        require(not set(touched) & set(decoded), "a slot is prefilled and decoded in one step")
        require(0 < prefilled + len(decoded) <= self.geometry.max_step_tokens, f"{prefilled} + {len(decoded)} tokens in one step")
        self._put_in_flight([*touched, *decoded], copied)
        if self.die_with & {self.rows[slot].seed for slot in (*touched, *decoded)}:
            self.deaths += 1
            self.restart()
            return
        if self.fail_step_with & {self.rows[slot].seed for slot in (*touched, *decoded)}:
            self.pending.append(StepFailed(session=self._session, step=plan.step, message="asked to fail"))
            self.pending.append(WorkerReady(worker=self.geometry.worker, incarnation=self.geometry.incarnation))
            self._session = 0
            return
        scores = None if plan.scores is None else self._score(plan.scores, plan.prefill)
        self.pending.append(replace(self._sample(plan, sampled + decoded, prefilled + len(decoded)), scores=scores))

    def _score(self, scores: Scores, prefill: Prefills | None) -> ScoreColumns:
        """Made-up logprobs that name their token, as `logprobs_of` does."""
        require(prefill is not None, "scores without a prompt")
        chunks = Prefills(slot=b"", start=b"", count=b"", sample=b"", tokens=b"") if prefill is None else prefill
        within = {
            slot: (start, start + count)
            for slot, start, count in zip(*(view_i32(column).tolist() for column in (chunks.slot, chunks.start, chunks.count)), strict=True)
        }
        slots = view_i32(scores.slot).tolist()
        columns = [view_i32(column, len(slots)).tolist() for column in (scores.start, scores.count, scores.top)]
        tokens = view_i32(scores.tokens, sum(count for count, top in zip(*columns[1:], strict=True) if top != POOLED)).tolist()
        wide: list[int] = []
        states: list[float] = []
        place = 0
        for slot, start, count, top in zip(slots, *columns, strict=True):
            first, last = within[slot]
            most = self.rows[slot].prompt_len - (top != POOLED)
            require(first <= start and count > 0 and start + count <= min(last, most), f"scores of slot {slot}")
            self.rows[slot].scored = True
            if top == POOLED:
                states += [sum(range(start, start + count)), count]
                continue
            wide += [token + 1 + number for token in tokens[place : place + count] for number in range(top)]
            place += count
        return ScoreColumns(
            slot=scores.slot,
            start=scores.start,
            count=scores.count,
            top=scores.top,
            chosen=pack_f32([-token / 8 for token in tokens]),
            ranks=pack_i32([token + 1 for token in tokens]),
            top_ids=pack_i32(wide),
            top_values=pack_f32([-token / 8 for token in wide]),
            states=pack_f32(states),
        )

    def _put_in_flight(self, slots: list[int], copied: list[int]) -> None:
        blocks = frozenset(copied).union(*[self.rows[slot].table for slot in slots])
        for block in blocks:
            self._memory.touched[block] += 1
        self._inflight.append(Touch(frozenset(slots), blocks))

    def _release(self, plan: StepPlan) -> None:
        for slot in view_i32(plan.release).tolist():
            require(slot in self.rows, f"release of slot {slot}, which is empty")
            require(not any(slot in touch.slots for touch in self._inflight), f"release of slot {slot}, which is in flight")
            for block in self.rows.pop(slot).table:
                self._memory.users[block] -= 1

    def _admit(self, admit: Admissions) -> None:
        slots = view_i32(admit.slot).tolist()
        rows = len(slots)
        require(rows > 0, "empty admissions")
        whole = [view_i32(admit.prompt_len, rows), view_i32(admit.logprobs, rows), view_i32(admit.top_k, rows)]
        penalties = [admit.presence_penalty, admit.frequency_penalty, admit.repetition_penalty]
        real = [view_f32(column, rows) for column in (*penalties, admit.temperature, admit.top_p, admit.min_p)]
        columns = zip(*[column.tolist() for column in (*whole, *real)], strict=True)
        for slot, seed, values in zip(slots, view_i64(admit.seed, rows).tolist(), columns, strict=True):
            require(0 <= slot < self.geometry.max_slots, f"slot {slot}")
            require(slot not in self.rows, f"slot {slot} admitted before it was released")
            require(not any(slot in touch.slots for touch in self._inflight), f"slot {slot} admitted while a plan in flight touches it")
            self.admitted.setdefault(seed, set()).add(values)
            self.rows[slot] = Row(seed, values[0], values[1], penalties=values[3:6] != (0.0, 0.0, 1.0))

    def _bias(self, bias: Biases, admitted: list[int]) -> None:
        slots, words = view_i32(bias.slot).tolist(), view_i32(bias.word_slot).tolist()
        require(len(slots) > 0 and len(set(slots)) == len(slots) and set(words) <= set(slots) <= set(admitted), "bias of other rows")
        closed, count = view_u8(bias.closed, len(slots)).tolist(), view_i32(bias.count, len(slots)).tolist()
        columns = [view_i32(bias.token, sum(count)), view_f32(bias.value, sum(count)), view_i32(bias.since, sum(count))]
        entries = list(zip(*(column.tolist() for column in columns), strict=True))
        sizes = view_i32(bias.word_count, len(words)).tolist()
        tokens = view_i32(bias.word_tokens, sum(sizes)).tolist()
        require(all(size > 1 for size in sizes), "a word of one token")
        own: dict[int, list[list[int]]] = {slot: [] for slot in slots}
        for slot, size in zip(words, sizes, strict=True):
            own[slot].append(tokens[:size])
            tokens = tokens[size:]
        for slot, number, only in zip(slots, count, closed, strict=True):
            part, entries = entries[:number], entries[number:]
            require(len({token for token, _, _ in part}) == number and (number > 0 or not only), "a token twice, or a closed row without any")
            row = self.rows[slot]
            row.worded = bool(own[slot])
            self.biased.setdefault(row.seed, set()).add((bool(only), tuple(part), tuple(map(tuple, own[slot]))))

    def _match(self, match: Matches, admitted: list[int]) -> None:
        slots = view_i32(match.slot).tolist()
        require(len(slots) > 0 and len(set(slots)) == len(slots) and set(slots) <= set(admitted), "grammars of other rows")
        for slot, number in zip(slots, view_i32(match.grammar, len(slots)).tolist(), strict=True):
            require(number in self.prepared, f"slot {slot} has grammar {number}, which is not there")
            row = self.rows[slot]
            row.grammar = number
            self.matched.setdefault(row.seed, set()).add(self.prepared[number])

    def _note_seen(self, admit: Admissions) -> None:
        slots = view_i32(admit.seen_slot).tolist()
        counts = view_i32(admit.seen_count, len(slots)).tolist()
        require(len(admit.seen_tokens) == 4 * sum(counts), "seen tokens do not fit their counts")
        offset = 0
        for slot, count in zip(slots, counts, strict=True):
            require(slot in self.rows, f"seen tokens of slot {slot}, which is empty")
            row = self.rows[slot]
            require(row.seen is None and row.length == 0, f"seen tokens of slot {slot}, which knows its tokens")
            require(row.penalties or (row.follows and count > row.prompt_len), f"seen tokens of slot {slot}, which does not need them")
            require(count > 0, f"no seen tokens of slot {slot}")
            self.seen += 1
            row.seen = admit.seen_tokens[offset : offset + 4 * count]
            offset += 4 * count

    def _append(self, plan: StepPlan) -> None:
        if plan.append is None:
            return
        slots = view_i32(plan.append.slot).tolist()
        require(len(slots) > 0, "empty appends")
        columns = (view_i32(plan.append.index, len(slots)).tolist(), view_i32(plan.append.block, len(slots)).tolist())
        entries = list(zip(slots, *columns, strict=True))
        for slot, _, block in entries:
            require(slot in self.rows, f"append to slot {slot}, which is empty")
            require(0 <= block < self.geometry.blocks, f"block {block}")
        new = [entry for entry in entries if not self._memory.swap(self.rows[entry[0]], *entry)]
        self.swaps += len(entries) - len(new)
        for slot, index, block in new:
            row = self.rows[slot]
            require(index == len(row.table) < self.geometry.max_blocks_per_slot, f"append at {index} of a table of {len(row.table)}")
            require(block not in row.table, f"block {block} twice in the table of slot {slot}")
            require(row.length == 0 or self._memory.users[block] == 0, f"block {block} has two owners")
            self._memory.users[block] += 1
            row.table.append(block)

    def _copy(self, copies: Copies | None) -> list[int]:
        """Copy before anything is computed. Returns the blocks touched."""
        self._sources.clear()
        if copies is None:
            return []
        sources: list[int] = view_i32(copies.source).tolist()
        targets: list[int] = view_i32(copies.target, len(sources)).tolist()
        self._sources.update(sources)
        require(len(sources) > 0 and len(set(targets)) == len(targets) and not self._sources & set(targets), "bad copies")
        memory = self._memory
        for source, target in zip(sources, targets, strict=True):
            owners = [row for row in self.rows.values() if target in row.table]
            require(len(owners) == 1, f"block {target}, which {len(owners)} rows own, is to be copied to")
            require(memory.touched[target] == 0, f"block {target} is to be copied to while a plan in flight touches it")
            require(owners[0].length == 0, f"block {target} of a row that runs is to be copied to")
            memory.cells[target][:] = memory.cells[source]
            memory.space[target] = memory.space[source]
            owners[0].copied.add(target)
        self.copies += len(sources)
        return sources + targets

    def _prefill(self, prefill: Prefills | None) -> tuple[int, list[int], list[int]]:
        if prefill is None:
            return 0, [], []
        slots = view_i32(prefill.slot).tolist()
        start, count = view_i32(prefill.start, len(slots)).tolist(), view_i32(prefill.count, len(slots)).tolist()
        flag = view_u8(prefill.sample, len(slots)).tolist()
        tokens = view_i32(prefill.tokens, sum(count)).tolist()
        require(len(slots) > 0 and len(set(slots)) == len(slots) and min(count) > 0, "bad prefills")
        for slot, first in zip(slots, start, strict=True):
            require(slot in self.rows, f"chunk of slot {slot}, which is empty")
            if self.rows[slot].length == 0:
                self._begin(slot, first)  # all of these before any write: what this plan computes cannot be shared yet
        offset = 0
        for slot, first, number in zip(slots, start, count, strict=True):
            require(first == self.rows[slot].length and self.rows[slot].last is None, f"chunk at {first} of a row of {self.rows[slot].length}")
            self._write(slot, tokens[offset : offset + number])
            offset += number
        self.computed += offset
        return offset, [slot for slot, last in zip(slots, flag, strict=True) if last], slots

    def _begin(self, slot: int, start: int) -> None:
        """The first chunk of a row starts at `start`: everything below must be there, of one history, and of this row's namespace."""
        row, size = self.rows[slot], self.geometry.block_size
        require(0 <= start <= len(row.table) * size, f"slot {slot} starts at {start} with a table of {len(row.table)} blocks")
        row.claimed, part = divmod(start, size)
        if part:
            require(row.table[row.claimed] in row.copied, f"slot {slot} starts within block {row.table[row.claimed]}, which is not its own copy")
            row.claimed += 1
        held = row.table[: row.claimed]
        row.content = bytearray(self._memory.read(held, start))
        values = array("q", bytes(row.content))
        require(min(values, default=0) >= 0, f"slot {slot} starts at {start}, but not all of it has been computed")
        tokens = [value & 0xFFFF_FFFF for value in values]
        expected, row.checksum = cells(tokens, 0)
        require(row.content == expected, f"slot {slot} starts at {start} upon blocks that are not of one history")
        require(all(self._memory.space[block] == row.space for block in held), f"slot {slot} shares a block of another namespace")
        told = (row.penalties and start > 0) or (row.follows and start > row.prompt_len)
        require(row.seen == (pack_i32(tokens) if told else None), f"slot {slot} was not told what it has seen")
        row.length = start
        self.hits += start

    def _write(self, slot: int, tokens: list[int]) -> None:
        """Compute `tokens` at the end of the row. Checks that all before is as it was and that the blocks are the row's own."""
        row, size, memory = self.rows[slot], self.geometry.block_size, self._memory
        end = row.length + len(tokens)
        require(end <= self.geometry.context, f"position {end - 1} beyond the context")
        require(end <= len(row.table) * size, f"position {end - 1} of slot {slot} has no block")
        require(min(tokens) >= 0 and max(tokens) < self.geometry.vocab, f"tokens {tokens}")
        require(memory.read(row.table, row.length) == row.content, f"a block of slot {slot} was overwritten while its row still needs it")
        new, row.checksum = cells(tokens, row.checksum)
        row.content += new
        for index in range(row.length // size, (end - 1) // size + 1):
            memory.claim(row, slot, index, self._sources)
            first, last = max(row.length, index * size), min(end, (index + 1) * size)
            block = memory.cells[row.table[index]]
            block[(first - index * size) * CELL_BYTES : (last - index * size) * CELL_BYTES] = row.content[first * CELL_BYTES : last * CELL_BYTES]
        row.length = end

    def _decode_rows(self, plan: StepPlan) -> list[int]:
        rows: NDArray[np.int32] = self._decode if plan.decode is None else view_slots(plan.decode)
        require(plan.decode is None or rows.size == 0 or not np.array_equal(rows, self._decode), "the same decode rows sent again")
        self._decode = rows
        slots = [int(slot) for slot in rows]
        require(len(set(slots)) == len(slots), "a slot decodes twice")
        for slot in slots:
            require(slot in self.rows, f"slot {slot} decodes, which is empty")
            last = self.rows[slot].last
            require(last is not None, f"slot {slot} decodes before its prefill")
            self._write(slot, [last or 0])
        return slots

    def _sample(self, plan: StepPlan, slots: list[int], computed: int) -> StepResult:
        tokens, status, asked = [], [], []
        for place, slot in enumerate(slots):
            row = self.rows[slot]
            token = draw(row.seed, row.length, row.prompt_len, row.checksum, self.geometry.vocab)
            lost = row.grammar is not None and self.prepared[row.grammar].startswith(LOST) and row.length >= row.prompt_len + 3
            bad = NON_FINITE if token is None else UNMATCHED if lost else OK
            token = None if bad else token
            row.last = 0 if token is None else token
            tokens.append(-1 if token is None else token)
            status.append(bad)
            if row.logprobs >= 0 and token is not None:
                asked.append((place, token, row.logprobs))
        return StepResult(
            session=plan.session,
            step=plan.step,
            slot=pack_i32(slots),
            token=pack_i32(tokens),
            status=pack_u8(status),
            logprobs=logprobs_of(asked),
            seconds=SECONDS_PER_TOKEN * computed,
        )
