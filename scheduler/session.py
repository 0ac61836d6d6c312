"""Everything that lives and dies with one attachment of the worker: slots, blocks, promises, plans in flight.

Who owns what in flight: a plan is in `inflight` from the moment it is sent until its result is here. A row that ends gives up its slot, blocks and
promise with the epoch `last_step`; all three become free together when that plan retires, and never earlier.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from messages.plan import StepPlan
from scheduler.blocks import Blocks
from scheduler.errors import InvariantError
from scheduler.geometry import Geometry
from scheduler.plan import Chunk, Columns, Composition, admissions, appends, prefills
from scheduler.requests import WAITING, Request
from scheduler.reservation import Reservation
from scheduler.slots import RUNNING, Slots
from transport.columns import I32


@dataclass(frozen=True, slots=True)
class InFlight:
    """A plan whose result is awaited. `sampled`: the slot column its result must have; `tokens`: prefill tokens + decode rows; `sent`: when."""

    step: int
    sampled: bytes
    touched: I32
    tokens: int
    sent: float


class Session:
    def __init__(self, number: int, geometry: Geometry, run_ahead: int) -> None:
        self.number = number
        self.geometry = geometry
        self.slots = Slots(geometry)
        self.blocks = Blocks(geometry)
        self.reservation = Reservation(geometry)
        self.inflight: deque[InFlight] = deque()
        self.prefilling: list[int] = []
        self._run_ahead = run_ahead
        self._step = 0
        self._released: list[int] = []
        self._decode = b""

    @property
    def may_plan(self) -> bool:
        return len(self.inflight) <= self._run_ahead

    def fits(self, limit: int) -> bool:
        """Whether a row of at most `limit` tokens can be admitted now."""
        return self.slots.free > 0 and self.reservation.fits(limit)

    def admit(self, request: Request) -> int:
        """Give the request a slot and its promise of blocks; `fits` must hold."""
        limit = request.limit(self.geometry)
        slot = self.slots.enter(request, limit)
        self.reservation.promise(slot, limit)
        self.prefilling.append(slot)
        return slot

    def chunk(self, slot: int, budget: int) -> tuple[Chunk, Columns]:
        """Plan the next at most `budget` tokens of a row that prefills, with the blocks they need."""
        start, target = int(self.slots.planned[slot]), int(self.slots.target[slot])
        count = min(budget, target - start)
        last = start + count == target
        self.slots.planned[slot] += count
        self.slots.decoding[slot] = last
        return Chunk(slot, start, count, last), self.blocks.cover(slot, start + count)

    def decode(self, rows: I32) -> Columns:
        """Plan one decode step of `rows`, with the blocks they need."""
        planned = self.slots.planned[rows]
        grown = self.blocks.grow(rows[planned == self.blocks.capacity[rows]])
        self.slots.planned[rows] = planned + 1
        return grown

    def seal(self, composition: Composition, now: float) -> StepPlan:
        """Number the composed step and put it in flight."""
        self._step += 1
        decode = composition.decode.tobytes()
        sampled = np.asarray([chunk.slot for chunk in composition.chunks if chunk.last], dtype=np.int32).tobytes() + decode
        touched = np.concatenate([np.asarray([chunk.slot for chunk in composition.chunks], dtype=np.int32), composition.decode])
        self.slots.last_step[touched] = self._step
        tokens = sum(chunk.count for chunk in composition.chunks) + composition.decode.size
        self.inflight.append(InFlight(self._step, sampled, touched, tokens, now))
        sealed = StepPlan(
            session=self.number,
            step=self._step,
            release=np.asarray(self._released, dtype=np.int32).tobytes(),
            admit=admissions(composition.admitted),
            append=appends(composition.appends),
            prefill=prefills(self.slots, composition.chunks),
            decode=None if decode and decode == self._decode else decode,
        )
        self._released = []
        self._decode = decode
        return sealed

    def retire(self) -> InFlight:
        """The oldest plan's result is here: what only it could still touch becomes free."""
        done = self.inflight.popleft()
        self.blocks.retire(done.step)
        self._free(self.slots.retire(done.step))
        return done

    def end(self, slot: int) -> None:
        """The row is over (finished, failed, aborted). The worker is told with the next plan after its slot is free."""
        if slot in self.prefilling:
            self.prefilling.remove(slot)
        self.blocks.release(slot, int(self.slots.last_step[slot]))
        self._free(self.slots.end(slot))

    def _free(self, slots: list[int]) -> None:
        for slot in slots:
            self.reservation.end(slot)
        self._released += slots

    def evacuate(self) -> list[Request]:
        """All running rows with their tokens so far, to run again in another session. This one is of no use afterwards."""
        running = [request for request in self.slots.requests if request is not None]
        for request in running:
            request.tokens = self.slots.known(request.slot)
            request.slot = WAITING
        return running

    def check(self) -> None:
        """Raises InvariantError; see the parts."""
        self.blocks.check()
        self.slots.check(self._run_ahead)
        self.reservation.check(self.blocks.count)
        steps = [plan.step for plan in self.inflight]
        facts = {
            "a row's table does not cover what is planned": not ((self.slots.state == RUNNING) & (self.slots.planned > self.blocks.capacity)).any(),
            "too many plans in flight": len(self.inflight) <= 1 + self._run_ahead,
            "plans in flight are not consecutive": steps == list(range(self._step - len(steps) + 1, self._step + 1)),
            "a slot is to be released twice": len(set(self._released)) == len(self._released),
            "a slot to be released is in use": not self.slots.state[self._released].any(),
            "a prefilling row is not": all(self.slots.requests[slot] is not None and not self.slots.decoding[slot] for slot in self.prefilling),
        }
        problems = [sentence for sentence, holds in facts.items() if not holds]
        if problems:
            raise InvariantError(problems)
