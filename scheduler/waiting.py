"""The waiting line: tenants in fair turns, each by aged priority and cache hits; rows that ran already come first, but for higher priorities."""

from bisect import bisect_left, insort
from collections.abc import Callable

from scheduler.errors import require
from scheduler.requests import WAITING, Request
from scheduler.shares import Shares

AGEING_SECONDS = 5.0
MAX_PRIORITY = 100
WINDOW = 8
MOST_PASSES = 8

Entry = tuple[float, int, Request]


def score(priority: int, now: float) -> float:
    """Place in the line, lowest first. A higher priority is more urgent; a request rises one class for every AGEING_SECONDS it waits.

    All requests age alike, so 'priority + waited / AGEING_SECONDS' orders them as this constant does and the line never needs sorting again.
    Priorities are cut to +-MAX_PRIORITY: nobody is overtaken by requests that come more than 2 * MAX_PRIORITY * AGEING_SECONDS later.
    """
    return now - AGEING_SECONDS * max(-MAX_PRIORITY, min(MAX_PRIORITY, priority))


def seniority(request: Request) -> tuple[float, int]:
    """Less is more senior: order of the line, and the reverse order of preemption."""
    return request.score, request.order


class Waiting:
    """`tokens`: of all that wait. `shares` knows the tenant of every live request.

    Rows that are held (see `scheduler.suspects`) are in nobody's way: `next` does not give them.

    Of the line of the tenant whose turn it is the first WINDOW with the priority of the first are looked at and the one with the longest
    cache hit goes first; the first is passed at most MOST_PASSES times. Rows that ran already (preempted, or their worker died) go before it,
    unless its priority is higher and they have not waited long enough to make up for that.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._returning: list[Entry] = []
        self._held: list[Entry] = []
        self._lines: dict[str, list[Entry]] = {}
        self._number = 0
        self.tokens = 0

    def __len__(self) -> int:
        return self._number

    def reset(self, requests: list[Request]) -> None:
        """Begin anew with these."""
        self._returning.clear()
        self._held.clear()
        self._lines.clear()
        self._number = self.tokens = 0
        for request in requests:
            request.slot = WAITING
            self.push(request)

    def push(self, request: Request) -> None:
        if not request.ran and not request.held:
            self._lines.setdefault(request.tenant, [])
        insort(self._line(request), (request.score, request.order, request))
        self._number += 1
        self.tokens += request.tokens.size

    def hold(self, held: Callable[[int], bool]) -> None:
        """From now on those are held of whose keys this is true, or whose grammar the worker does not have, and no others."""
        for request in self.all():
            if request.held != (held(request.key) or not request.matchable):
                self.remove(request)
                request.held = not request.held
                self.push(request)

    def next(self, hit: Callable[[Request], int]) -> Request | None:
        """Who is to be admitted next, left in its place. `hit` gives the tokens of a request that are cached."""
        returning = self._returning[0][2] if self._returning else None
        fresh = self._fresh(hit) if self._lines else None
        if returning is None or fresh is None:
            return returning or fresh
        return fresh if fresh.priority > returning.priority and seniority(fresh) < seniority(returning) else returning

    def _fresh(self, hit: Callable[[Request], int]) -> Request:
        """Whose turn it is of those that have not run."""
        line = self._lines[self._shares.turn(self._lines)]
        first = line[0][2]
        if len(line) == 1 or first.passes >= MOST_PASSES:
            return first
        return max((request for _, _, request in line[:WINDOW] if request.priority == first.priority), key=hit)

    def admit(self, request: Request) -> None:
        """`request`, just given by `next`, leaves the line for a slot."""
        if not request.ran:
            first = self._lines[request.tenant][0][2]
            first.passes += first is not request
        self.remove(request)

    def remove(self, request: Request) -> None:
        line = self._line(request)
        del line[self._index(line, request)]
        if not line and not request.ran and not request.held:
            del self._lines[request.tenant]
        self._number -= 1
        self.tokens -= request.tokens.size

    def ahead(self, tenant: str, place: float) -> tuple[int, float]:
        """How many are likely to go before a request of `tenant` that would come now with this `score`, and about how many tokens they have.

        Those that return do, those of its tenant with a lower score, and as many of each other tenant (see `scheduler.shares`).
        """
        own = bisect_left(self._lines.get(tenant, ()), (place,))
        others = sum(min(len(line), own + 1) for name, line in self._lines.items() if name != tenant)
        number = len(self._returning) + own + others
        return number, self.tokens * number / max(1, self._number)

    def _line(self, request: Request) -> list[Entry]:
        if request.held:
            return self._held
        return self._returning if request.ran else self._lines[request.tenant]

    def _index(self, line: list[Entry], request: Request) -> int:
        return bisect_left(line, (request.score, request.order))

    def all(self) -> list[Request]:
        """Every waiting request, in order of arrival."""
        entries = [*self._returning, *self._held, *(entry for line in self._lines.values() for entry in line)]
        return sorted((entry[2] for entry in entries), key=lambda request: request.order)

    def check(self) -> None:
        """Raises InvariantError when the counts do not add up or a line is out of order."""
        everyone = self.all()
        lines = [self._returning, self._held, *self._lines.values()]
        facts = {
            "waiting tokens do not add up": self.tokens == sum(request.tokens.size for request in everyone),
            "waiting requests do not add up": self._number == len(everyone),
            "a line is out of order": all(line == sorted(line) for line in lines),
            "an empty line is kept": all(self._lines.values()),
            "a request is in the wrong line": all(
                request.tenant == tenant and not request.ran and not request.held for tenant, line in self._lines.items() for _, _, request in line
            ),
            "a held request is in the line, or another is not": {order for _, order, _ in self._held} == {one.order for one in everyone if one.held},
        }
        require(facts)
