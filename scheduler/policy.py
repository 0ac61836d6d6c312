"""What the next step computes: decode rows first, then prompt chunks, then new rows, under the token budgets."""

from scheduler.pace import Pace
from scheduler.plan import Composition
from scheduler.session import Session
from scheduler.shares import Shares
from scheduler.waiting import Waiting


class Policy:
    """`blocked`: what the next request in line waited for when the last step was composed: "slot", "blocks", "prefix", "tokens", or ""."""

    def __init__(self, waiting: Waiting, shares: Shares, pace: Pace) -> None:
        self._waiting = waiting
        self._shares = shares
        self._pace = pace
        self.blocked = ""

    def compose(self, session: Session, now: float) -> Composition | None:
        """The next step, or None when there is nothing to compute. Takes admitted requests out of the line and puts preempted ones back.

        Budgets: prefill tokens + decode rows <= max_step_tokens of the worker; prefill tokens <= the pace. A row begins to decode only by way of
        a chunk that had room beside the decode rows, so these never outgrow a step. While decode rows lack blocks nobody else gets any.
        """
        ready = session.ready(now)
        for request in ready.preempted:
            self._waiting.push(request)
        composition = Composition(decode=ready.rows)
        if ready.grown is not None:
            composition.appends.append(ready.grown)
        session.decode(ready.rows)
        if ready.starved:
            self.blocked = "blocks"
        elif session.prefilling or self._waiting:
            self._prefill(session, composition, min(self._pace.chunk(ready.rows.size), session.geometry.max_step_tokens - ready.rows.size))
        return composition if ready.rows.size or composition.chunks else None

    def _prefill(self, session: Session, composition: Composition, budget: int) -> None:
        while budget > 0:
            if not session.prefilling and not self._admit_next(session, composition):
                return
            planned = session.chunk(session.prefilling[0], budget)
            if planned is None:
                self.blocked = "blocks"
                return
            chunk, columns = planned
            composition.chunks.append(chunk)
            composition.appends.append(columns)
            budget -= chunk.count
            if chunk.last:
                session.prefilling.pop(0)
        self.blocked = "tokens"

    def _admit_next(self, session: Session, composition: Composition) -> bool:
        request = self._waiting.next(session.cached)
        if request is None:
            self.blocked = ""
            return False
        self.blocked = session.admit(request, composition)
        if self.blocked:
            return False
        self._waiting.admit(request)
        request.ran = True
        self._shares.charge(request.tenant, request.tokens.size - int(session.slots.planned[request.slot]))
        return True
