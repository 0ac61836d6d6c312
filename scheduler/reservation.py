"""The promise made at admission: an admitted row can always get the blocks it may come to need.

A row promises blocks for its whole possible length: prompt + min(max_tokens, context - prompt), less the last token, which is never fed back.
All promises together never exceed the pool. Blocks themselves are taken only as the row grows. So no row ever waits for another and deadlock
is impossible; the price is that long limits admit few rows. Preemption will replace this file and nothing else of admission.
"""

import numpy as np

from scheduler.errors import InvariantError
from scheduler.geometry import Geometry
from transport.columns import I32


class Reservation:
    """`promised` [slots] i32 blocks; `total` their sum. A promise ends when the row's blocks are free again, not when the row ends."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self.promised: I32 = np.zeros(geometry.slots, dtype=np.int32)
        self.total = 0

    def need(self, limit: int) -> int:
        """Blocks a row of at most `limit` tokens can come to hold."""
        return self._geometry.blocks_for(limit - 1)

    def fits(self, limit: int) -> bool:
        return self.total + self.need(limit) <= self._geometry.blocks

    def promise(self, slot: int, limit: int) -> None:
        self.promised[slot] = self.need(limit)
        self.total += self.need(limit)

    def end(self, slot: int) -> None:
        self.total -= int(self.promised[slot])
        self.promised[slot] = 0

    def check(self, count: I32) -> None:
        """Raises InvariantError when promises exceed the pool or a row of `count` blocks holds more than promised."""
        problems = []
        if self.total != int(self.promised.sum()) or self.total > self._geometry.blocks:
            problems.append(f"{self.total} blocks promised of {self._geometry.blocks}")
        if (count > self.promised).any():
            problems.append("a row holds more blocks than promised")
        if problems:
            raise InvariantError(problems)
