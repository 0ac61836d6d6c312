"""The slot table: one column per fact, one row per slot."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from scheduler.epochs import Epochs
from scheduler.errors import require
from scheduler.geometry import Geometry
from scheduler.requests import Beginning, Request, beginning
from transport.columns import I32, I64

Places = NDArray[np.intp]
FREE, RUNNING, RETIRING = 0, 1, 2
NO_TOKEN = -1


class Slots:
    """Columns [slots]; token counts are of prompt + generated.

    `length`: tokens known. `target`: tokens to prefill before the first sample. `planned`: positions whose KV the plans sent so far compute.
    `limit`: length at which the row ends. `decoding`: the last prefill chunk has been planned and the row has not ended.
    `last_step`: the last plan that touches the row. `history` [slots, context]: the tokens themselves (pages never written cost no memory).
    `ends` [width, slots]: end tokens, padded with NO_TOKEN; no row has had more than `most_ends`.
    """

    def __init__(self, geometry: Geometry) -> None:
        number = geometry.slots
        self.state = np.zeros(number, dtype=np.uint8)
        self.decoding: NDArray[np.bool_] = np.zeros(number, dtype=np.bool_)
        self.key: I64 = np.zeros(number, dtype=np.int64)
        self.tokenizer: I32 = np.zeros(number, dtype=np.int32)
        self.prompt_len: I32 = np.zeros(number, dtype=np.int32)
        self.length: I32 = np.zeros(number, dtype=np.int32)
        self.target: I32 = np.zeros(number, dtype=np.int32)
        self.planned: I32 = np.zeros(number, dtype=np.int32)
        self.limit: I32 = np.zeros(number, dtype=np.int32)
        self.last_step: I64 = np.zeros(number, dtype=np.int64)
        self.history: I32 = np.empty((number, geometry.context), dtype=np.int32)
        self.ends: I32 = np.full((4, number), NO_TOKEN, dtype=np.int32)
        self.most_ends = 0
        self.requests: list[Request | None] = [None] * number
        self._free = list(range(number - 1, -1, -1))
        self._retiring: Epochs[int] = Epochs()

    @property
    def free(self) -> int:
        return len(self._free)

    def append(self, rows: Places, fresh: Places, tokens: I32) -> I32:
        """A token for each of the `fresh` ones among `rows`; the lengths of all `rows` afterwards."""
        length = self.length[fresh]
        self.history[fresh, length] = tokens
        self.length[fresh] = length + 1
        return self.length[rows]

    def enter(self, request: Request, limit: int, cached: int) -> int:
        """Give `request` a slot; there must be a free one. The KV of its first `cached` tokens is there already."""
        slot = self._free.pop()
        size = request.tokens.size
        self.state[slot] = RUNNING
        self.key[slot] = request.key
        self.tokenizer[slot] = request.tokenizer
        self.prompt_len[slot] = request.prompt_len
        self.length[slot] = self.target[slot] = size
        self.planned[slot] = cached
        self.last_step[slot] = 0
        self.limit[slot] = limit
        self.history[slot, :size] = request.tokens
        self._set_ends(slot, request.end_ids)
        self.requests[slot] = request
        request.slot = slot
        return slot

    def _set_ends(self, slot: int, end_ids: list[int]) -> None:
        width, number = self.ends.shape
        self.most_ends = max(self.most_ends, len(end_ids))
        if len(end_ids) > width:
            wider = np.full((max(len(end_ids), 2 * width), number), NO_TOKEN, dtype=np.int32)
            wider[:width] = self.ends
            self.ends = wider
        self.ends[:, slot] = NO_TOKEN
        self.ends[: len(end_ids), slot] = end_ids

    def end(self, slot: int) -> list[int]:
        """The row has ended: nothing more is planned or delivered for it. Returns [slot] when it is free at once, else []."""
        self.state[slot] = RETIRING
        self.decoding[slot] = False
        self.requests[slot] = None
        return self._freed(self._retiring.give(slot, int(self.last_step[slot])))

    def retire(self, step: int) -> list[int]:
        """Plan `step` has retired; returns the slots that became free."""
        return self._freed(self._retiring.retire(step))

    def _freed(self, slots: list[int]) -> list[int]:
        for slot in slots:
            self.state[slot] = FREE
            self._free.append(slot)
        return slots

    def decodable(self) -> I32:
        """Slots that may be given one more decode step: never past the limit. Ascending."""
        return np.flatnonzero(self.decoding & (self.planned + 1 < self.limit)).astype(np.int32)

    def known(self, slot: int) -> I32:
        """A copy of the row's tokens."""
        return self.history[slot, : self.length[slot]].copy()

    def beginnings(self, rows: Places, now: float) -> dict[int, Beginning]:
        """Of running rows that get their first token, by key."""
        return {request.key: beginning(request, now) for slot in rows.tolist() if (request := self.requests[slot]) is not None}

    def tenants(self, rows: Places) -> Counter[str]:
        """How many of running `rows` each tenant has."""
        return Counter(request.tenant for slot in rows.tolist() if (request := self.requests[slot]) is not None)

    def check(self, run_ahead: int) -> None:
        """Raises InvariantError. `run_ahead`: plans in flight at most."""
        running = self.state == RUNNING
        facts = {
            "free slots do not add up": np.array_equal(np.sort(self._free), np.flatnonzero(self.state == FREE)),
            "retiring slots do not add up": np.array_equal(np.sort(self._retiring.held()), np.flatnonzero(self.state == RETIRING)),
            "a slot runs without its request": all(
                (request is not None and request.slot == slot and request.key == self.key[slot]) == bool(running[slot])
                for slot, request in enumerate(self.requests)
            ),
            "a row that does not run decodes": not (self.decoding & ~running).any(),
            "a row is longer than its limit": not (running & ((self.length >= self.limit) | (self.planned >= self.limit))).any(),
            "a row is planned too far ahead": not (running & (self.planned >= self.length + run_ahead)).any(),
            "a row decodes before its prefill": np.array_equal(self.decoding, running & (self.planned >= self.target)),
        }
        require(facts)
