"""What the next step computes: decode rows first, then prompt chunks, then new rows, under the token budgets."""

import numpy as np

from scheduler.plan import Composition
from scheduler.session import Session
from scheduler.waiting import Waiting
from transport.columns import I32


def compose(session: Session, waiting: Waiting, chunk_tokens: int) -> Composition | None:
    """The next step, or None when there is nothing to compute. Takes admitted requests out of `waiting`.

    Budgets: prefill tokens + decode rows <= max_step_tokens of the worker; prefill tokens <= chunk_tokens. The head of the waiting line is never
    passed by another, so a large request cannot starve.
    """
    rows = _decode_rows(session)
    composition = Composition(decode=rows)
    if rows.size:
        composition.appends.append(session.decode(rows))
    budget = min(chunk_tokens, session.geometry.max_step_tokens - rows.size)
    if budget > 0 and (session.prefilling or waiting):
        _prefill(session, waiting, composition, budget)
    return composition if rows.size or composition.chunks else None


def _decode_rows(session: Session) -> I32:
    """All rows that can decode; when one step cannot hold them, those that have waited longest."""
    rows = session.slots.decodable()
    room = session.geometry.max_step_tokens
    if rows.size <= room:
        return rows
    longest = np.argsort(session.slots.last_step[rows], kind="stable")[:room]
    return np.sort(rows[longest])


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
