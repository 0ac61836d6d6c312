"""Forms that wait for their trial: each once, however many ask for it, and tenants in turn. Used on the loop alone."""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from messages.constraint import Constraint
from messages.text import Problem

Done = Callable[[str], None]
Failed = Callable[[Problem], None]


@dataclass(frozen=True, eq=False)
class Asker:
    """A request that waits: one of `done`, with the program, and `failed` is for it. `size`: the bytes that it keeps meanwhile; `wanted`: whether
    its client is there."""

    constraint: Constraint
    tenant: str
    size: int
    wanted: Callable[[], bool]
    done: Done
    failed: Failed


@dataclass(eq=False)
class Trial:
    """Of one form, first asked for at `since`. `slow`: a first trial was broken off because it took long. `extended`: it may go on nevertheless."""

    constraint: Constraint
    since: float
    askers: list[Asker] = field(default_factory=list)
    slow: bool = False
    begun: bool = False
    extended: bool = False


class Turns:
    """Tenants in turn; of one tenant, first come, first served."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, deque[Trial]] = OrderedDict()

    def put(self, tenant: str, trial: Trial) -> None:
        """It may stand in the lines of several."""
        self._of.setdefault(tenant, deque()).append(trial)

    def take(self) -> Trial | None:
        """The next one that has not begun."""
        while self._of:
            tenant, line = self._of.popitem(last=False)
            trial = line.popleft()
            if line:
                self._of[tenant] = line
            if not trial.begun:
                return trial
        return None


class Room:
    """For `most` bytes of requests that wait. A tenant may have as many of them as are free then, so that there is always room for another tenant."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._taken: Counter[str] = Counter()

    def take(self, tenant: str, size: int) -> bool:
        """False when there is none."""
        if self._taken[tenant] + size > self._free - size:
            return False
        self._taken[tenant] += size
        self._free -= size
        return True

    def give_back(self, tenant: str, size: int) -> None:
        self._free += size
        self._taken[tenant] -= size
        if not self._taken[tenant]:
            del self._taken[tenant]
