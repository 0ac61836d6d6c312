"""A file about a request that ended the worker: what `launch.py replay` needs to run its steps again. Written by the scheduler.

It is POISON_MAGIC and one MessagePack-encoded Poison. Of the request it has token ids and sampling fields, as its plans do, and no text.
"""

import msgspec

from messages.plan import StepPlan
from messages.result import Attached

POISON_MAGIC = b"pagewire poison 1\n"
MOST_POISON_BYTES = 16 << 20
POISON_FILES = "poison-*.plan"
"""Their names in the run directory, with a number, and beside it when the cluster has ended, with its port too."""


class Poison(msgspec.Struct, frozen=True, kw_only=True, tag="poison"):
    """`plans`: those of the last session in which the request ran, with nothing else in it, in order; `answered` of them gave a result.

    `attached` is the worker of that session, `why` what was found, `time` in seconds since 1970.
    """

    attached: Attached
    plans: list[StepPlan]
    answered: int
    why: str
    time: float = 0.0
