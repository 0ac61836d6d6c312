"""Which slots the rows of decode steps are, as the device has them."""

import numpy as np

from transport.columns import I32
from worker.resident.arena import Arena

UNKNOWN = -1
"""No slot, so that it is written again."""
NOTHING: I32 = np.zeros(0, np.int32)


class Places:
    """The host's copy of the column `rows` of an arena."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._rows: I32 = np.full(arena.dummy, arena.dummy, np.int32)
        self._last: tuple[I32, int] = (NOTHING, 0)

    def forget(self) -> None:
        """It is not known what the device has."""
        self._rows.fill(UNKNOWN)
        self._last = NOTHING, 0

    def changes(self, slot: I32, size: int) -> list[I32]:
        """Pairs that make the first `size` rows those of `slot`, which nobody writes to, and dummies."""
        if slot is self._last[0] and size == self._last[1]:
            return []
        wanted = np.full(size, self._arena.dummy, np.int32)
        wanted[: len(slot)] = slot
        changed = np.flatnonzero(wanted != self._rows[:size])
        self._rows[changed] = wanted[changed]
        self._last = slot, size
        return [self._arena.column("rows", changed, wanted[changed])] if len(changed) else []
