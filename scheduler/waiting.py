"""The waiting line: by priority, then first come first served, aged so that nobody starves."""

import heapq

from scheduler.errors import InvariantError
from scheduler.requests import Request

AGEING_SECONDS = 5.0
MAX_PRIORITY = 100
FIRST = float("-inf")


def score(priority: int, now: float) -> float:
    """Place in the line, lowest first. A higher priority is more urgent; a request rises one class for every AGEING_SECONDS it waits.

    All requests age alike, so 'priority + waited / AGEING_SECONDS' orders them as this constant does and the line never needs sorting again.
    Priorities are cut to +-MAX_PRIORITY: nobody is overtaken by requests that come more than 2 * MAX_PRIORITY * AGEING_SECONDS later.
    """
    return now - AGEING_SECONDS * max(-MAX_PRIORITY, min(MAX_PRIORITY, priority))


class Waiting:
    """A heap of requests by (score, order); removed ones stay as tombstones until they surface or outnumber the rest."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._present: dict[int, Request] = {}
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._present)

    def push(self, request: Request) -> None:
        self._present[request.order] = request
        self.tokens += request.tokens.size
        heapq.heappush(self._heap, (request.score, request.order, request))

    def head(self) -> Request | None:
        """The next request, left in its place."""
        while self._heap and self._heap[0][1] not in self._present:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def remove(self, request: Request) -> None:
        del self._present[request.order]
        self.tokens -= request.tokens.size
        if len(self._heap) > 2 * len(self._present) + 16:
            self._heap = [entry for entry in self._heap if entry[1] in self._present]
            heapq.heapify(self._heap)

    def all(self) -> list[Request]:
        """Every waiting request, in order of arrival."""
        return [self._present[order] for order in sorted(self._present)]

    def check(self) -> None:
        """Raises InvariantError when the counts do not add up."""
        present = list(self._present.values())
        problems = []
        if self.tokens != sum(request.tokens.size for request in present):
            problems.append(f"waiting tokens counted {self.tokens}")
        if not {request.order for request in present} <= {order for _, order, _ in self._heap}:
            problems.append("a waiting request is not in the line")
        if problems:
            raise InvariantError(problems)
