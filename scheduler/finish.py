"""The one finish check."""

import numpy as np

from messages.result import OK
from messages.tokens import FINISH_END_TOKEN, FINISH_ERROR, FINISH_LENGTH, RUNNING
from scheduler.slots import Places, Slots
from transport.columns import I32, U8

COUNTER_OF = {FINISH_END_TOKEN: "finished_stop", FINISH_LENGTH: "finished_length", FINISH_ERROR: "errors"}
"""Under which of its ends a sequence counts."""


def finish_of(slots: Slots, rows: Places, length: I32, token: I32, status: U8) -> U8:
    """The finish column of `rows`, which have `length` tokens with the newest, `token`.

    An error comes before an end token, and an end token before the limit (max_tokens or context).
    """
    finish = np.where(length >= slots.limit[rows], np.uint8(FINISH_LENGTH), np.uint8(RUNNING))
    for ends in slots.ends[: slots.most_ends]:
        finish[ends[rows] == token] = FINISH_END_TOKEN
    finish[status != OK] = FINISH_ERROR
    return finish
