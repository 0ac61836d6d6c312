"""Where each word of the resident state lies: one int32 tensor for everything a plan can change."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.reference.resident import Columns
from transport.columns import I32, I64
from worker.slots import Slots

ALIGNMENT = 32
"""Words between the beginnings of columns: 128 bytes, so that int64 views and wide loads are aligned."""
FLOATS = ("temperature", "top_p", "min_p")
INTS = ("length", "last", "failed", "top_k")


class Arena:
    """`columns`, `table` int32 [S + 1, B] and `rows` int32 [S], the slots of a decode step in order, over one int32 tensor `words`.

    Slot S is the dummy: greedy, of length 0, its table full of `dummy_block`.
    """

    def __init__(self, slots: int, max_blocks: int, dummy_block: int, device: torch.device) -> None:
        self.dummy = slots
        self._offsets: dict[str, int] = {}
        self._end = 0
        sizes = dict.fromkeys((*INTS, *FLOATS), slots + 1) | {"seed": 2 * (slots + 1), "turn": 1, "rows": slots, "table": (slots + 1) * max_blocks}
        for name, size in sizes.items():
            self._offsets[name] = self._end
            self._end += -(-size // ALIGNMENT) * ALIGNMENT
        self.words = torch.zeros(self._end, dtype=torch.int32, device=device)
        views = {name: self._view(name, sizes[name]) for name in sizes}
        floats = {name: views[name].view(torch.float32) for name in FLOATS}
        self.columns = Columns(seed=views["seed"].view(torch.int64), turn=views["turn"], **{name: views[name] for name in INTS}, **floats)
        self.columns.top_p.fill_(1.0)
        self.rows = views["rows"].fill_(slots)
        self.table = views["table"].view(slots + 1, max_blocks)
        self.table.fill_(dummy_block)

    def _view(self, name: str, size: int) -> Tensor:
        return self.words[self._offsets[name] : self._offsets[name] + size]

    def column(self, name: str, slot: NDArray[np.integer], values: NDArray[np.generic]) -> I32:
        """Pairs [2, N] that set column `name` of the slots to 4-byte values."""
        return np.stack((slot.astype(np.int32) + np.int32(self._offsets[name]), values.view(np.int32)))

    def admitted(self, slot: I32, slots: Slots) -> Iterable[I32]:
        """Pairs that start rows: not failed, and their sampling columns as `slots` has them. Their lengths are the caller's to set."""
        yield self.column("failed", slot, np.zeros(len(slot), np.int32))
        yield self.column("top_k", slot, slots.top_k[slot].clip(max=np.iinfo(np.int32).max).astype(np.int32))
        for name in FLOATS:
            yield self.column(name, slot, slots.floats[name][slot])
        words = slots.seed[slot].view(np.int32).reshape(-1, 2)
        yield self.column("seed", 2 * slot, np.ascontiguousarray(words[:, 0]))
        yield self.column("seed", 2 * slot + 1, np.ascontiguousarray(words[:, 1]))

    def appended(self, slot: I32, index: I32, table: I64) -> I32:
        """Pairs that bring table entries to what the host's `table` says."""
        place = slot.astype(np.int64) * self.table.shape[1] + index
        return self.column("table", place, table[slot, index].astype(np.int32))


def joined(pairs: list[I32]) -> I32:
    """Pairs of several changes as one [2, N]."""
    return np.concatenate(pairs, 1) if pairs else np.zeros((2, 0), np.int32)
