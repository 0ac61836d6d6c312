"""The one finish check."""

import numpy as np

from messages.result import OK
from messages.tokens import FINISH_END_TOKEN, FINISH_ERROR, FINISH_LENGTH, RUNNING
from scheduler.slots import Slots
from transport.columns import I32, U8


def finish_of(slots: Slots, rows: I32, token: I32, status: U8) -> U8:
    """The finish column of rows whose newest token has just been counted in `slots.length`.

    An error comes before an end token, and an end token before the limit (max_tokens or context).
    """
    finish = np.where(slots.length[rows] >= slots.limit[rows], np.uint8(FINISH_LENGTH), np.uint8(RUNNING))
    finish[(slots.ends[rows] == token[:, None]).any(axis=1)] = FINISH_END_TOKEN
    finish[status != OK] = FINISH_ERROR
    return finish
