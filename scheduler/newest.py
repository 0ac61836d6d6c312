"""The newest tokens of a session's rows, put where they belong."""

from dataclasses import dataclass

import numpy as np

from messages.result import OK
from scheduler.delivery import Delivery, Sampled
from scheduler.finish import finish_of
from scheduler.session import Session
from scheduler.slots import Places


@dataclass(frozen=True, slots=True)
class Newest:
    """What is to be told, and the slots of the rows that got a token."""

    delivery: Delivery
    fresh: Places


def take_in(session: Session, sampled: Sampled, now: float) -> Newest | None:
    """The tokens of rows that have not ended meanwhile become part of them. None when all have."""
    slots = session.slots
    rows, token, status = sampled.slots.astype(np.intp), sampled.token, sampled.status
    place = np.flatnonzero(slots.decoding[rows])
    if not place.size:
        return None
    if place.size < rows.size:
        rows, token, status = rows[place], token[place], status[place]
    good = status == OK
    failed = not good.all()
    fresh = rows[good] if failed else rows
    length = slots.append(rows, fresh, token[good] if failed else token)
    session.grown(rows, length)
    finish = finish_of(slots, rows, length, token, status)
    index = length - slots.prompt_len[rows] - good
    first = slots.beginnings(rows[index == 0], now)
    delivery = Delivery(place, slots.tokenizer[rows], slots.key[rows], token, finish, index, status, first)
    for slot in rows[~good].tolist() if failed else ():
        session.pool.forget(slot)
    return Newest(delivery, fresh)
