"""The block table and its ledger: which KV block belongs to whom, and when it may be used again.

Every block is in exactly one of three places: the free stack, the table row of one slot, or retirement. (Sharing through the prefix cache and
copy-on-write will add reference counts here.)
"""

import numpy as np

from scheduler.epochs import Epochs
from scheduler.errors import InvariantError
from scheduler.geometry import Geometry
from transport.columns import I32


class Blocks:
    """`table` [slots, table_width] i32; `count` [slots] blocks in each row; `capacity` [slots] = count * block_size tokens."""

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self.table: I32 = np.full((geometry.slots, geometry.table_width), -1, dtype=np.int32)
        self.count: I32 = np.zeros(geometry.slots, dtype=np.int32)
        self.capacity: I32 = np.zeros(geometry.slots, dtype=np.int32)
        self._stack: I32 = np.arange(geometry.blocks - 1, -1, -1, dtype=np.int32)
        self.free = geometry.blocks
        self._retiring: Epochs[I32] = Epochs()

    def _take(self, number: int) -> I32:
        if number > self.free:
            raise InvariantError([f"{number} blocks wanted, {self.free} free: the reservation is broken"])
        self.free -= number
        return self._stack[self.free : self.free + number][::-1].copy()

    def _give(self, blocks: I32) -> None:
        self._stack[self.free : self.free + blocks.size] = blocks
        self.free += blocks.size

    def grow(self, slots: I32) -> tuple[I32, I32, I32]:
        """One more block for each of `slots` (distinct). Returns columns (slot, index, block)."""
        blocks = self._take(slots.size)
        index = self.count[slots]
        self.table[slots, index] = blocks
        self.count[slots] += 1
        self.capacity[slots] += self._geometry.block_size
        return slots, index, blocks

    def cover(self, slot: int, positions: int) -> tuple[I32, I32, I32]:
        """Blocks so that `slot` holds `positions` tokens. Returns columns (slot, index, block), maybe empty."""
        start = int(self.count[slot])
        stop = max(start, self._geometry.blocks_for(positions))
        blocks = self._take(stop - start)
        self.table[slot, start:stop] = blocks
        self.count[slot] = stop
        self.capacity[slot] = stop * self._geometry.block_size
        return np.full(stop - start, slot, dtype=np.int32), np.arange(start, stop, dtype=np.int32), blocks

    def release(self, slot: int, epoch: int) -> None:
        """The row of `slot` has ended; its blocks are free when plan `epoch` has retired."""
        blocks = self.table[slot, : self.count[slot]].copy()
        self.table[slot, : self.count[slot]] = -1
        self.count[slot] = self.capacity[slot] = 0
        for free in self._retiring.give(blocks, epoch):
            self._give(free)

    def retire(self, step: int) -> None:
        for blocks in self._retiring.retire(step):
            self._give(blocks)

    def check(self) -> None:
        """Raises InvariantError unless free + held + retiring == pool with no block in two places."""
        rows = [self.table[slot, : self.count[slot]] for slot in range(self._geometry.slots)]
        places = np.concatenate([self._stack[: self.free], *rows, *self._retiring.held()])
        problems = []
        if not np.array_equal(np.sort(places), np.arange(self._geometry.blocks)):
            problems.append(f"blocks do not add up: {sorted(places.tolist())}")
        if (self.capacity != self.count * self._geometry.block_size).any():
            problems.append("a row's capacity is not that of its blocks")
        if problems:
            raise InvariantError(problems)
