"""Where decode steps leave their tokens for the host: the last kernel of a step writes them, so that nothing need be launched after its graph.

Whatever is launched between two graphs, a copy or a kernel, costs the device some 15 us (bench/GPU.md).
"""

import threading
from typing import NamedTuple

import numpy as np
import torch

from kernels.reference.resident import FIRST, TURNS
from transport.columns import I32
from worker.resident.arena import Arena

PLACES, SPARE = 64, 8
"""Steps whose tokens lie there at once, a power of two, and how many of them are for steps that nobody counts."""


class Post:
    """`words` int32 [PLACES, FIRST + slots], pinned memory of the host: see `kernels.reference.resident.finish_rows`.

    Turns are counted here as on the device, but never start again. Whoever launches may `count` a step when there is `room`, and asks the `Posted`
    thing that this gives for its tokens once the step is over; on one other thread, in order.
    """

    def __init__(self, arena: Arena) -> None:
        device, self._arena = arena.words.device, arena
        host = device.type != "meta"
        self.words = torch.zeros(PLACES, FIRST + arena.dummy, dtype=torch.int32, device="cpu" if host else device, pin_memory=device.type == "cuda")
        self._numbers: np.ndarray = self.words.numpy() if host else np.zeros(0, np.int32)
        self._turn = self._seen = 0
        self._known = True
        self._more = threading.Condition()

    def forget(self) -> None:
        """There may have been steps that were not counted."""
        self._known = False

    def changes(self) -> list[I32]:
        """Pairs that make the device's count this one."""
        if self._known:
            return []
        self._known = True
        return [self._arena.column("turn", np.zeros(1, np.int32), np.array([self._turn % TURNS], np.int32))]

    def room(self, seconds: float) -> bool:
        """Whether the tokens of another step have a place, for which this waits up to `seconds`."""
        if self._turn - self._seen < PLACES - SPARE:
            return True
        with self._more:
            return self._more.wait_for(lambda: self._turn - self._seen < PLACES - SPARE, seconds)

    def count(self) -> "Posted":
        """A step was launched."""
        self._turn += 1
        return Posted(self, self._turn)

    def take(self, turn: int, count: int) -> I32:
        """The first `count` tokens of a step that is over. Raises RuntimeError when they are not there."""
        place = self._numbers[turn % PLACES]
        found = int(place[0])
        if found != turn % TURNS:
            raise RuntimeError(f"the tokens of decode step {turn % TURNS} are not where the host looks for them, but those of {found}")
        tokens: I32 = place[FIRST : FIRST + count].copy()
        with self._more:
            self._seen = turn
            self._more.notify()
        return tokens


class Posted(NamedTuple):
    """A step whose tokens the device writes to `post`."""

    post: Post
    turn: int

    def tokens(self, count: int) -> I32:
        """The first `count`, once the step is over."""
        return self.post.take(self.turn, count)
