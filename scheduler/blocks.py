"""The block table and its ledger: which KV block belongs to whom, and when it may be used again."""

import numpy as np

from scheduler.epochs import Epochs
from scheduler.errors import InvariantError, require
from scheduler.geometry import Geometry
from transport.columns import I32, I64

Columns = tuple[I32, I32, I32]


class Blocks:
    """`table` [slots, table_width] i32; `count` [slots] blocks in each row; `capacity` [slots] = count * block_size tokens.

    `refs` [blocks]: rows whose table has the block. `epoch` [blocks]: the last plan that may touch a block no row has any more.
    A block is on the free stack, or retiring, or in tables, or (refs 0) kept by the prefix tree; the ledger does not know the tree.
    """

    def __init__(self, geometry: Geometry) -> None:
        self._geometry = geometry
        self.table: I32 = np.full((geometry.slots, geometry.table_width), -1, dtype=np.int32)
        self.count: I32 = np.zeros(geometry.slots, dtype=np.int32)
        self.capacity: I32 = np.zeros(geometry.slots, dtype=np.int32)
        self.refs: I32 = np.zeros(geometry.blocks, dtype=np.int32)
        self.epoch: I64 = np.zeros(geometry.blocks, dtype=np.int64)
        self.free = geometry.blocks
        self.retiring = 0
        self._stack: I32 = np.arange(geometry.blocks - 1, -1, -1, dtype=np.int32)
        self._epochs: Epochs[I32] = Epochs()

    def _take(self, number: int) -> I32:
        if number > self.free:
            raise InvariantError([f"{number} blocks wanted, {self.free} free"])
        self.free -= number
        blocks = self._stack[self.free : self.free + number][::-1].copy()
        self.refs[blocks] = 1
        return blocks

    def grow(self, slots: I32) -> Columns:
        """One more block for each of `slots` (distinct). Returns columns (slot, index, block)."""
        blocks = self._take(slots.size)
        index = self.count[slots]
        self.table[slots, index] = blocks
        self.count[slots] += 1
        self.capacity[slots] += self._geometry.block_size
        return slots, index, blocks

    def lacking(self, slot: int, positions: int) -> int:
        """Blocks that `slot` lacks to hold `positions` tokens."""
        return max(0, self._geometry.blocks_for(positions) - int(self.count[slot]))

    def cover(self, slot: int, positions: int) -> Columns:
        """Blocks so that `slot` holds `positions` tokens. Returns columns (slot, index, block), maybe empty."""
        return self._put(slot, self._take(self.lacking(slot, positions)))

    def share(self, slot: int, blocks: I32) -> Columns:
        """Begin the empty row of `slot` with `blocks`, which others may hold too. The caller has counted it in `refs`."""
        return self._put(slot, blocks)

    def _put(self, slot: int, blocks: I32) -> Columns:
        start = int(self.count[slot])
        stop = start + blocks.size
        self.table[slot, start:stop] = blocks
        self.count[slot] = stop
        self.capacity[slot] = stop * self._geometry.block_size
        return np.full(blocks.size, slot, dtype=np.int32), np.arange(start, stop, dtype=np.int32), blocks

    def clear(self, slot: int, epoch: int) -> I32:
        """The row of `slot` has ended; plan `epoch` is the last that touches it. Returns the blocks it had."""
        blocks: I32 = self.table[slot, : self.count[slot]].copy()
        self.table[slot, : self.count[slot]] = -1
        self.count[slot] = self.capacity[slot] = 0
        self.refs[blocks] -= 1
        self.epoch[blocks] = np.maximum(self.epoch[blocks], epoch)
        return blocks

    def exchange(self, slot: int, index: int, block: int, epoch: int) -> None:
        """The row's table has `block` at `index` instead of a block of its own, which plan `epoch` is the last to touch."""
        own = self.table[slot, index : index + 1].copy()
        self.refs[block] += 1
        self.table[slot, index] = block
        self.refs[own] -= 1
        self.epoch[own] = np.maximum(self.epoch[own], epoch)
        self.give_up(own)

    def give_up(self, blocks: I32) -> None:
        """Nobody holds or keeps `blocks`: they are free once the last plan that may touch one of them has retired."""
        if not blocks.size:
            return
        self.retiring += blocks.size
        for free in self._epochs.give(blocks, int(self.epoch[blocks].max())):
            self._free(free)

    def retire(self, step: int) -> None:
        for blocks in self._epochs.retire(step):
            self._free(blocks)

    def _free(self, blocks: I32) -> None:
        self._stack[self.free : self.free + blocks.size] = blocks
        self.free += blocks.size
        self.retiring -= blocks.size

    def check(self, kept: I32) -> None:
        """Raises InvariantError unless every block is in exactly one place. `kept`: blocks in the prefix tree."""
        rows = [self.table[slot, : self.count[slot]] for slot in range(self._geometry.slots)]
        holds = np.bincount(np.concatenate(rows), minlength=self.refs.size)
        unused = kept[self.refs[kept] == 0]
        retiring = self._epochs.held()
        places = np.concatenate([self._stack[: self.free], *retiring, np.flatnonzero(self.refs), unused])
        facts = {
            "blocks do not add up": np.array_equal(np.sort(places), np.arange(self.refs.size)),
            "a block's holders do not add up": np.array_equal(holds, self.refs),
            "retiring blocks do not add up": self.retiring == sum(blocks.size for blocks in retiring),
            "a row's capacity is not that of its blocks": not (self.capacity != self.count * self._geometry.block_size).any(),
        }
        require(facts)
