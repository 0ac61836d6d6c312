"""What the next step computes: decode rows first, then prompt chunks, then new rows, under the token budgets."""

from scheduler.plan import Composition
from scheduler.session import Session
from scheduler.waiting import Waiting


def compose(session: Session, waiting: Waiting, chunk_tokens: int) -> Composition | None:
    """The next step, or None when there is nothing to compute. Takes admitted requests out of `waiting`.

    Budgets: prefill tokens + decode rows <= max_step_tokens of the worker; prefill tokens <= chunk_tokens. A row begins to decode only by way of a
    chunk that had room beside the decode rows, so these never outgrow a step. The head of the waiting line is never passed by another, so a
    large request cannot starve.
    """
    rows = session.slots.decodable()
    composition = Composition(decode=rows)
    if rows.size:
        composition.appends.append(session.decode(rows))
    budget = min(chunk_tokens, session.geometry.max_step_tokens - rows.size)
    if budget > 0 and (session.prefilling or waiting):
        _prefill(session, waiting, composition, budget)
    return composition if rows.size or composition.chunks else None


def _prefill(session: Session, waiting: Waiting, composition: Composition, budget: int) -> None:
    while budget > 0:
        if not session.prefilling:
            head = waiting.head()
            if head is None or not session.fits(head.limit(session.geometry)):
                return
            waiting.remove(head)
            session.admit(head)
            composition.admitted.append(head)
        chunk, columns = session.chunk(session.prefilling[0], budget)
        composition.chunks.append(chunk)
        composition.appends.append(columns)
        budget -= chunk.count
        if chunk.last:
            session.prefilling.pop(0)
