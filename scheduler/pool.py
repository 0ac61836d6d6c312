"""The KV pool: the ledger of blocks and the prefix tree, kept in step.

A row's complete blocks are entered in the tree as a path from the top. Where another row has entered the same tokens first, that node stays: the
row's table is made to name it and the row's own copy is given up. So the nodes a row uses are the first blocks of its own table, a node is never
used without the nodes above it, and everything in the tree without users can be evicted, leaf by leaf.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.blocks import Blocks, Columns
from scheduler.errors import require
from scheduler.geometry import Geometry
from scheduler.prefix import Parent, PrefixTree
from scheduler.tally import Tally
from transport.columns import I32, I64

NEVER = 2**62
IntColumn = NDArray[np.integer]
_NONE: I32 = np.zeros(0, dtype=np.int32)
NOTHING: Columns = (_NONE, _NONE, _NONE)


@dataclass(frozen=True, slots=True)
class Swap:
    """From plan `step` on, `index` of the row's table is `block`, which holds the same tokens as the block that was there."""

    slot: int
    index: int
    block: int
    step: int


class Pool:
    """`due` [slots]: tokens with KV at which the row's next block is complete and is to be entered; NEVER for a row that enters no more.

    `kept` [blocks]: it is a node of the tree. `unused` counts nodes without users. With `keep` false nothing outlives its users.
    """

    def __init__(self, geometry: Geometry, keep: bool, tally: Tally) -> None:
        self.blocks = Blocks(geometry)
        self.tree = PrefixTree(self.blocks.refs, geometry.block_size)
        self.due: I64 = np.full(geometry.slots, NEVER, dtype=np.int64)
        self.unused = 0
        self._keep = keep
        self._tally = tally
        self._size = geometry.block_size
        self._bytes = 4 * geometry.block_size
        self.kept = np.zeros(geometry.blocks, dtype=np.bool_)
        self._born: I64 = np.zeros(geometry.blocks, dtype=np.int64)
        self._node: list[Parent] = [""] * geometry.slots
        self._depth: I32 = np.zeros(geometry.slots, dtype=np.int32)
        self._offsets = np.arange(geometry.block_size)
        self._swaps: list[Swap] = []

    @property
    def available(self) -> int:
        """Blocks that are free, or will be without ending a row."""
        return self.blocks.free + self.blocks.retiring + self.unused

    def match(self, salt: str, tokens: I32) -> I32:
        """Blocks that hold the longest known part of `tokens`; at least one token is left over."""
        most = (tokens.size - 1) // self._size
        return np.asarray(self.tree.match(salt, tokens.tobytes(), most), dtype=np.int32)

    def born_in(self, blocks: I32, step: int) -> bool:
        """Whether plan `step` computes a part of this path."""
        return bool(blocks.size) and bool(self._born[blocks[-1]] == step)

    # Rows

    def hold(self, path: I32) -> None:
        """One more user of a path of nodes."""
        self.unused -= int((self.blocks.refs[path] == 0).sum())
        self.blocks.refs[path] += 1

    def let_go(self, path: I32) -> None:
        """Take back a `hold`."""
        self.blocks.refs[path] -= 1
        self.unused += int((self.blocks.refs[path] == 0).sum())
        if path.size:
            self.tree.offer(int(path[-1]))

    def begin(self, slot: int, salt: str, path: I32) -> Columns:
        """A row begins with the blocks of `path`, which the caller holds."""
        self._node[slot] = int(path[-1]) if path.size else salt
        self._depth[slot] = path.size
        self.due[slot] = (path.size + 1) * self._size
        return self.blocks.share(slot, path)

    def enter(self, slot: int, history: I32, computed: int, step: int) -> None:
        """Enter the row's blocks below `computed` tokens, whose KV is complete once plan `step` has run. `history` [context]: the row's tokens."""
        first, stop = int(self._depth[slot]), computed // self._size
        tokens = history[first * self._size : stop * self._size].tobytes()
        blocks = self.blocks.table[slot, first:stop].tolist()
        nodes: list[int] = []
        node = self._node[slot]
        for block, start in zip(blocks, range(0, len(tokens), self._bytes), strict=True):
            node = self.tree.enter(node, tokens[start : start + self._bytes], block)
            nodes.append(node)
        self._node[slot] = node
        self._settle(np.full(len(nodes), slot), np.arange(first, stop), blocks, nodes, np.full(len(nodes), step))

    def enter_next(self, rows: NDArray[np.intp], history: I32, steps: I64) -> None:
        """Enter one block more of each of `rows`, which is complete since plan `steps`, one for each. `history` [slots, context]."""
        depth = self._depth[rows]
        tokens = history[rows[:, None], (depth * self._size)[:, None] + self._offsets].tobytes()
        blocks = self.blocks.table[rows, depth].tolist()
        slots, start, enter = rows.tolist(), range(0, len(tokens), self._bytes), self.tree.enter
        nodes = [enter(self._node[slot], tokens[at : at + self._bytes], block) for slot, at, block in zip(slots, start, blocks, strict=True)]
        for slot, node in zip(slots, nodes, strict=True):
            self._node[slot] = node
        self._settle(rows, depth, blocks, nodes, steps)

    def _settle(self, rows: IntColumn, index: IntColumn, blocks: list[int], nodes: list[int], steps: I64) -> None:
        """Columns: the block at `index` of a row's table has been entered; where the node is another block, the row takes that one over."""
        self.kept[nodes] = True
        self._born[blocks] = steps
        if nodes != blocks:
            for place in range(len(nodes)):
                if nodes[place] != blocks[place]:
                    self._exchange(int(rows[place]), int(index[place]), nodes[place], int(steps[place]))
        self._depth[rows] = index + 1
        self.due[rows] = (index + 2) * self._size

    def _exchange(self, slot: int, index: int, node: int, step: int) -> None:
        self.unused -= not self.blocks.refs[node]
        self.blocks.exchange(slot, index, node, step)
        self._swaps.append(Swap(slot, index, node, step + 1))

    def swaps(self, step: int) -> Columns:
        """Table entries to change with plan `step`: columns (slot, index, block), given once."""
        if not self._swaps:
            return NOTHING
        now = [swap for swap in self._swaps if swap.step <= step]
        self._swaps = [swap for swap in self._swaps if swap.step > step]
        columns = np.asarray([(swap.slot, swap.index, swap.block) for swap in now], dtype=np.int32).reshape(-1, 3)
        return columns[:, 0], columns[:, 1], columns[:, 2]

    def copy_of(self, slot: int, index: int, step: int) -> int:
        """The block at `index` of a row's table, to be copied by plan `step`."""
        block = int(self.blocks.table[slot, index])
        self.blocks.epoch[block] = max(int(self.blocks.epoch[block]), step)
        return block

    def stop_entering(self, slot: int) -> None:
        """Nothing more of this row goes into the tree."""
        self.due[slot] = NEVER

    def end(self, slot: int, epoch: int) -> None:
        """The row is over; plan `epoch` is the last that touches it."""
        node, self._node[slot] = self._node[slot], ""
        self.due[slot] = NEVER
        if self._swaps:
            self._swaps = [swap for swap in self._swaps if swap.slot != slot]
        blocks = self.blocks.clear(slot, epoch)
        idle = blocks[self.blocks.refs[blocks] == 0]
        kept = self.kept[idle]
        self.unused += int(kept.sum())
        self.blocks.give_up(idle[~kept])
        self.tree.release(blocks, node if isinstance(node, int) else None)
        if not self._keep:
            self.evict(self.unused)

    # Room

    def room(self, number: int) -> int:
        """Evict until `number` blocks are free or retiring, if possible. Returns how many are free now."""
        short = number - self.blocks.free - self.blocks.retiring
        if short > 0:
            self.evict(short)
        return self.blocks.free

    def evict(self, number: int) -> None:
        """Take at most `number` unused blocks out of the tree, longest unused first."""
        blocks = np.asarray(self.tree.evict(number), dtype=np.int32)
        self.kept[blocks] = False
        self.unused -= blocks.size
        self.blocks.give_up(blocks)
        if self._keep:
            self._tally.add("evicted_blocks", blocks.size)

    def forget(self, slot: int) -> None:
        """The row's KV may hold values that are not numbers: whatever shares its first block is no longer found."""
        node = self._node[slot]
        if not isinstance(node, int):
            return
        branch = np.asarray(self.tree.forget(node), dtype=np.int32)
        idle = branch[self.blocks.refs[branch] == 0]
        self.kept[branch] = False
        self.unused -= idle.size
        self.blocks.give_up(idle)
        gone = set(branch.tolist())
        for other, its in enumerate(self._node):
            if its in gone:
                self._node[other] = ""
                self.due[other] = NEVER

    def check(self) -> None:
        """Raises InvariantError; see the parts."""
        kept = np.flatnonzero(self.kept).astype(np.int32)
        self.blocks.check(kept)
        self.tree.check()
        facts = {
            "the tree's blocks do not add up": kept.size == len(self.tree) and all(block in self.tree for block in kept.tolist()),
            "unused nodes do not add up": self.unused == int((self.blocks.refs[kept] == 0).sum()),
            "a row does not stand on its own block": all(
                node in self.tree and node == self.blocks.table[slot, self._depth[slot] - 1]
                for slot, node in enumerate(self._node)
                if isinstance(node, int)
            ),
        }
        require(facts)
