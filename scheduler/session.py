"""Everything that lives and dies with one attachment of the worker: slots, the KV pool, plans in flight.

Who owns what in flight: a plan is in `inflight` from the moment it is sent until its result is here. A row that ends or is preempted gives up its
slot and blocks with the epoch `last_step`; they become free together when that plan retires, and never earlier.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from messages.plan import Scores, StepPlan
from messages.poison import Poison
from messages.result import Attached
from scheduler.args import SchedulerArgs
from scheduler.bias import biases
from scheduler.blocks import Columns
from scheduler.deadlines import Deadlines, Work
from scheduler.errors import InvariantError, require
from scheduler.geometry import Geometry
from scheduler.headroom import Headroom
from scheduler.plan import Chunk, Composition, admissions, appends, copies, matches, prefills
from scheduler.pool import Pool
from scheduler.requests import WAITING, Request
from scheduler.scores import scores
from scheduler.slots import RUNNING, Places, Slots
from scheduler.tally import Tally
from scheduler.waiting import seniority
from transport.columns import I32, pack_slots


@dataclass(frozen=True, slots=True)
class InFlight:
    """A plan whose result is awaited. `sampled`: the slot column its result must have; `sent`: when; `scores`: prompt positions whose logprobs it
    must have."""

    step: int
    sampled: bytes
    touched: I32
    work: Work
    sent: float
    scores: Scores | None


@dataclass(frozen=True, slots=True)
class Ready:
    """Decode `rows` (ascending slots) with the table columns `grown` for them. `starved`: a row that decodes lacks a block, or has
    one because another was preempted."""

    rows: I32
    grown: Columns | None
    preempted: list[Request]
    starved: bool


class Session:
    """Of the worker `attached`. With `keeps` its plans are kept for `poison`."""

    def __init__(self, attached: Attached, geometry: Geometry, args: SchedulerArgs, tally: Tally, keeps: bool = False) -> None:
        self.number = attached.session
        self.geometry = geometry
        self.slots = Slots(geometry)
        self.pool = Pool(geometry, args.prefix_cache, tally)
        self.headroom = Headroom(geometry.block_size)
        self.inflight: deque[InFlight] = deque()
        self.prefilling: list[int] = []
        self.given_up: str | None = None
        self._run_ahead = args.run_ahead
        self._keep = args.prefix_cache
        self._tally = tally
        self._step = 0
        self._released: list[int] = []
        self._refused: Request | None = None
        self._refused_at = 0
        self._decode = b""
        self._attached = attached
        self._kept: list[StepPlan] | None = [] if keeps else None

    @property
    def may_plan(self) -> bool:
        return len(self.inflight) < self._run_ahead

    @property
    def next_step(self) -> int:
        """The number of the plan that is composed next, or now."""
        return self._step + 1

    # Admission

    def cached(self, request: Request) -> int:
        """Tokens of a waiting request whose KV is there, as seen when it was first asked."""
        if request.hit is None:
            request.hit = 0 if request.salt is None else self.pool.match(request.salt, request.tokens).size * self.geometry.block_size
        return request.hit

    def admit(self, request: Request, composition: Composition) -> str:
        """Give the request a slot if that can be done now: "".

        Else what it waits for: a "slot", "blocks", or the "prefix" that this very plan computes. A request that lacked blocks is looked at again
        only when there are more: to look takes time in proportion to its length.
        """
        if not self.slots.free:
            return "slot"
        pool = self.pool
        available = pool.available
        if request is self._refused and available <= self._refused_at:
            return "blocks"
        path = pool.match(request.salt, request.tokens) if request.salt is not None else np.zeros(0, dtype=np.int32)
        if pool.born_in(path, self.next_step):
            return "prefix"
        pool.hold(path)
        lacking = self.geometry.blocks_for(request.tokens.size) - path.size
        running = self.slots.state == RUNNING
        headroom = self.headroom.blocks((self.slots.limit - self.slots.length)[running]) if running.any() else 0
        if lacking + headroom > pool.available:
            self._refused, self._refused_at = request, available
            pool.let_go(path)
            return "blocks"
        if not pool.room(1):  # until blocks that retire are free
            pool.let_go(path)
            return "blocks"
        self._enter(request, path, composition)
        return ""

    def _enter(self, request: Request, path: I32, composition: Composition) -> None:
        cached = path.size * self.geometry.block_size
        slot = self.slots.enter(request, request.limit(self.geometry), cached)
        composition.appends.append(self.pool.begin(slot, request.salt or "", path))
        if request.salt is None:
            self.pool.stop_entering(slot)
        source = self._fork_of(request, path.size, composition)
        if source is not None:
            columns = self.pool.blocks.cover(slot, request.tokens.size)
            composition.appends.append(columns)
            composition.copies.append((source, int(columns[2][0])))
            cached += self._copied(request)
            self.slots.planned[slot] = cached
            self._tally.add("copied_blocks")
        if not request.ran:
            request.cached = cached
            self._tally.add("prefix_queries", request.tokens.size)
            self._tally.add("prefix_hits", cached)
        self.prefilling.append(slot)
        composition.admitted.append((request, cached))

    def _copied(self, request: Request) -> int:
        """Tokens of the last block of a prompt that a copy saves: all but the last of the prompt."""
        return (request.prompt_len - 1) % self.geometry.block_size

    def _fork_of(self, request: Request, shared: int, composition: Composition) -> int | None:
        """The block of the first choice that holds the end of the same prompt, when an earlier plan computes it and only it is not shared."""
        leader = request.leader
        if leader is None or request.ran or not self._copied(request) or shared != (request.prompt_len - 1) // self.geometry.block_size:
            return None
        slot = leader.slot
        if slot == WAITING or not self.slots.decoding[slot] or any(chunk.slot == slot for chunk in composition.chunks):
            return None
        return self.pool.copy_of(slot, shared, self.next_step)

    # Steps

    def chunk(self, slot: int, budget: int) -> tuple[Chunk, Columns] | None:
        """Plan the next at most `budget` tokens of a row that prefills, with the blocks they need; None when there is no block now."""
        start, target = int(self.slots.planned[slot]), int(self.slots.target[slot])
        blocks = self.pool.blocks
        lacking = blocks.lacking(slot, min(start + budget, target))
        free = min(lacking, self.pool.room(lacking))
        stop = min(start + budget, target, int(blocks.capacity[slot]) + free * self.geometry.block_size)
        if stop == start:
            return None
        columns = blocks.cover(slot, stop)
        last = stop == target
        self.slots.planned[slot] = stop
        self.slots.decoding[slot] = last
        if stop >= self.pool.due[slot]:
            self.pool.enter(slot, self.slots.history[slot], stop, self.next_step)
        if last and not self._keep:
            self.pool.stop_entering(slot)
        return Chunk(slot, start, stop - start, last), columns

    def ready(self, now: float) -> Ready:
        """Rows that may decode now, and the blocks they get for it. Others are preempted for blocks, youngest and lowest priority first."""
        preempted: list[Request] = []
        rows, needy = self._needy()
        if not needy.size:
            return Ready(rows, None, preempted, False)
        blocks = self.pool.blocks
        while self.pool.room(needy.size) + blocks.retiring < needy.size:
            preempted.append(self.preempt(now))
            rows, needy = self._needy()
        starved = blocks.free < needy.size
        if starved:
            by_seniority = sorted(needy.tolist(), key=lambda slot: seniority(self._request(slot)))
            needy = np.sort(np.asarray(by_seniority[: blocks.free], dtype=np.int32))
            rows = rows[(self.slots.planned[rows] < blocks.capacity[rows]) | np.isin(rows, needy)]
        return Ready(rows, blocks.grow(needy), preempted, starved or bool(preempted and rows.size))

    def _needy(self) -> tuple[I32, I32]:
        """Rows that may decode, and those of them that need one more block for it."""
        rows = self.slots.decodable()
        return rows, rows[self.slots.planned[rows] == self.pool.blocks.capacity[rows]]

    def decode(self, rows: I32) -> None:
        """Plan one decode step of `rows`, whose blocks are there."""
        self.slots.planned[rows] += 1

    def _request(self, slot: int) -> Request:
        request = self.slots.requests[slot]
        if request is None:
            raise InvariantError([f"slot {slot} runs without its request"])
        return request

    def preempt(self, now: float) -> Request:
        """Take the least senior row out of its slot, with its tokens; it is to run again from them."""
        request = max((request for request in self.slots.requests if request is not None), key=seniority)
        request.tokens = self.slots.known(request.slot)
        request.preemptions += 1
        request.moments.preempted(now - request.arrived, request.tokens.size - request.prompt_len)
        self.end(request.slot)
        request.slot = WAITING
        self.headroom.preempted()
        self._tally.add("preemptions")
        return request

    def seal(self, composition: Composition, now: float) -> StepPlan:
        """Number the composed step and put it in flight."""
        self._step += 1
        decode = pack_slots(composition.decode)
        sampled = np.asarray([chunk.slot for chunk in composition.chunks if chunk.last], dtype=np.int32).tobytes() + composition.decode.tobytes()
        touched = np.concatenate([np.asarray([chunk.slot for chunk in composition.chunks], dtype=np.int32), composition.decode])
        self.slots.last_step[touched] = self._step
        scored = scores(self.slots, composition.chunks)
        self._note(composition, now)
        self.inflight.append(InFlight(self._step, sampled, touched, self._work(composition), now, scored))
        self.headroom.planned()
        sealed = StepPlan(
            session=self.number,
            step=self._step,
            release=np.asarray(self._released, dtype=np.int32).tobytes(),
            admit=admissions(composition.admitted),
            bias=biases([(request.slot, request.bias) for request, _ in composition.admitted if request.bias is not None]),
            match=matches(composition.admitted),
            append=appends([self.pool.swaps(self._step), *composition.appends]),
            copies=copies(composition.copies),
            prefill=prefills(self.slots, composition.chunks),
            decode=None if decode and decode == self._decode else decode,
            scores=scored,
        )
        self._released = []
        self._decode = decode
        if self._kept is not None:
            self._kept.append(sealed)
        return sealed

    def _note(self, composition: Composition, now: float) -> None:
        for request, cached in composition.admitted:
            request.began = now if request.began is None else request.began
            request.moments.got_slot(now - request.arrived, request.slot, cached)
        for chunk in composition.chunks:
            request = self._request(chunk.slot)
            request.moments.computed(now - request.arrived, chunk.count)

    def _work(self, composition: Composition) -> Work:
        decode, chunks = composition.decode, composition.chunks
        reads = int(self.slots.planned[decode].sum()) + sum(chunk.count * (chunk.start + chunk.count) for chunk in chunks)
        return Work(sum(chunk.count for chunk in chunks), decode.size, reads)

    def retire(self) -> InFlight:
        """The oldest plan's result is here: what only it could still touch becomes free."""
        done = self.inflight.popleft()
        self.pool.blocks.retire(done.step)
        self._released += self.slots.retire(done.step)
        return done

    def grown(self, rows: Places, length: I32) -> None:
        """`rows` have `length` tokens now: blocks of theirs that are complete by that go into the prefix tree."""
        complete = rows[length > self.pool.due[rows]]
        if complete.size:
            self.pool.enter_next(complete, self.slots.history, self.slots.last_step[complete])

    def end(self, slot: int) -> None:
        """The row is over (finished, failed, aborted, preempted). The worker is told with the next plan after its slot is free."""
        if slot in self.prefilling:
            self.prefilling.remove(slot)
        self.pool.end(slot, int(self.slots.last_step[slot]))
        self._released += self.slots.end(slot)

    def awaited(self, deadlines: Deadlines, since: float, now: float) -> tuple[float, float]:
        """How long the oldest plan in flight has been awaited, `since` then or since it was sent, and how long it may be; 0 and 0 without one."""
        if not self.inflight:
            return 0.0, 0.0
        return max(0.0, now - max(self.inflight[0].sent, since)), deadlines.of(self.inflight[0].work)

    def overdue(self, deadlines: Deadlines, since: float, now: float) -> str | None:
        """That the oldest plan in flight is late: a sentence. Once it was given up that stays so."""
        waited, limit = self.awaited(deadlines, since, now)
        if self.given_up is not None or waited <= limit:
            return self.given_up
        work = self.inflight[0].work
        return f"no result for {limit:.0f} s of a step with {work.prefill} prompt tokens and {work.rows} decode rows"

    def give_up(self, deadlines: Deadlines, since: float, now: float, otherwise: str | None) -> str | None:
        """What `overdue` says, or else `otherwise`, once."""
        if self.given_up is not None:
            return None
        late = self.overdue(deadlines, since, now)
        if late is not None:
            deadlines.missed(self.inflight[0].work)
        self.given_up = late or otherwise
        return self.given_up

    def poison(self, why: str) -> Poison:
        """All its plans, which ended the worker."""
        plans = self._kept or []
        return Poison(attached=self._attached, plans=plans, answered=len(plans) - len(self.inflight), why=why)

    def rescue(self, request: Request) -> bool:
        """Take a live request out of a session whose state is wrong; False when its tokens are lost."""
        slot, request.slot = request.slot, WAITING
        if slot == WAITING:
            return True
        if self.slots.key[slot] != request.key or not request.prompt_len <= self.slots.length[slot] < self.slots.limit[slot]:
            return False
        request.tokens = self.slots.known(slot)
        return True

    def evacuate(self, now: float) -> list[Request]:
        """All running rows with their tokens so far, to run again in another session. This one is of no use afterwards."""
        running = [request for request in self.slots.requests if request is not None]
        for request in running:
            request.tokens = self.slots.known(request.slot)
            request.moments.interrupted(now - request.arrived, request.tokens.size - request.prompt_len)
            request.slot = WAITING
        return running

    def check(self) -> None:
        """Raises InvariantError; see the parts."""
        self.pool.check()
        self.slots.check(self._run_ahead)
        steps = [plan.step for plan in self.inflight]
        running = self.slots.state == RUNNING
        facts = {
            "a row's table does not cover what is planned": not (running & (self.slots.planned > self.pool.blocks.capacity)).any(),
            "a slot that does not run has blocks": not self.pool.blocks.count[~running].any(),
            "too many plans in flight": len(self.inflight) <= self._run_ahead,
            "plans in flight are not consecutive": steps == list(range(self._step - len(steps) + 1, self._step + 1)),
            "a slot is to be released twice": len(set(self._released)) == len(self._released),
            "a slot to be released is in use": not self.slots.state[self._released].any(),
            "a prefilling row is not": all(self.slots.requests[slot] is not None and not self.slots.decoding[slot] for slot in self.prefilling),
        }
        require(facts)
