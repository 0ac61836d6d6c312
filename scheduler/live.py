"""The live requests: by key, what they may come to together, and which of them are out of time."""

import heapq
from collections.abc import Iterator

from scheduler.errors import require
from scheduler.geometry import Geometry
from scheduler.grammar import Grammar
from scheduler.lives import Ended
from scheduler.requests import Request

SPARE = 64
"""Deadlines of requests that are over are kept until there are so many more of them than of live ones."""


def reserve(prompt_len: int, max_tokens: int | None, geometry: Geometry | None) -> int:
    """The tokens that a sequence may come to, as far as that is known while there is no worker."""
    if geometry is None:
        return prompt_len + (max_tokens or 0)
    return geometry.context if max_tokens is None else min(prompt_len + max_tokens, geometry.context)


class Live(dict[int, Request]):
    """Change it with `enter` and `leave` alone. `reserved`: the tokens that all of them may have at their ends, prompts and answers.

    `ended`: what had happened to those that have left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reserved = 0
        self.ended = Ended()
        self._deadlines: list[tuple[float, int, int]] = []
        self._timed = 0

    def enter(self, request: Request, geometry: Geometry | None) -> None:
        self[request.key] = request
        request.reserved = reserve(request.prompt_len, request.max_tokens, geometry)
        self.reserved += request.reserved
        if request.deadline is not None:
            self._timed += 1
            heapq.heappush(self._deadlines, (request.deadline, request.order, request.key))

    def leave(self, request: Request) -> None:
        del self[request.key]
        self.ended.keep(request.key, request.moments)
        self.reserved -= request.reserved
        if request.deadline is not None:
            self._timed -= 1
            if len(self._deadlines) > 2 * self._timed + SPARE:
                self._deadlines = [entry for entry in self._deadlines if self._is_live(entry)]
                heapq.heapify(self._deadlines)

    def _is_live(self, entry: tuple[float, int, int]) -> bool:
        _, order, key = entry
        request = self.get(key)
        return request is not None and request.order == order  # a key may come again after its end

    def following(self, grammar: Grammar | None) -> list[Request]:
        """Those that follow this grammar; nobody follows None."""
        return [] if grammar is None else [request for request in self.values() if request.grammar is grammar]

    @property
    def next_deadline(self) -> float | None:
        """No live request is out of time before; None: none ever is."""
        return self._deadlines[0][0] if self._deadlines else None

    def due(self, now: float) -> Iterator[Request]:
        """Those that are out of time, each once. They may leave meanwhile."""
        while self._deadlines and self._deadlines[0][0] <= now:
            entry = heapq.heappop(self._deadlines)
            if self._is_live(entry):
                yield self[entry[2]]

    def repair(self) -> None:
        """Make the sums right for those that are here."""
        timed = [request for request in self.values() if request.deadline is not None]
        self.reserved, self._timed = sum(request.reserved for request in self.values()), len(timed)
        self._deadlines = [(request.deadline, request.order, request.key) for request in timed if request.deadline is not None]
        heapq.heapify(self._deadlines)

    def check(self) -> None:
        """Raises InvariantError when the sums do not add up."""
        timed = [request for request in self.values() if request.deadline is not None]
        kept = {(order, key) for _, order, key in self._deadlines}
        facts = {
            "reserved tokens do not add up": self.reserved == sum(request.reserved for request in self.values()),
            "timed requests do not add up": self._timed == len(timed),
            "a deadline is forgotten": all((request.order, request.key) in kept for request in timed),
        }
        require(facts)
