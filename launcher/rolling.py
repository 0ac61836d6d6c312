"""Starting the frontends again one by one, so that the others have the port meanwhile."""

from collections.abc import Iterable

from launcher.child import Child

NOTICE, LEAVING, COMING = "notice", "leaving", "coming"
NOTICE_SECONDS = 0.5
"""Longer than it takes a process to hear that it is about to leave."""
KILL_SECONDS = 5.0
NO_LIMIT = 1e9


class Rolling:
    """Each is told that it leaves, ended once its requests have finished or had `wait` seconds (None: as long as they take), and started again.

    One that does not get on for `load_seconds` after that is killed, a death like any other.
    """

    def __init__(self, children: Iterable[Child], wait: float | None, load_seconds: float, now: float) -> None:
        self._left = list(children)
        self._load_seconds = load_seconds
        self._seconds = NO_LIMIT if wait is None else wait
        self._next(now)

    @property
    def name(self) -> str:
        """Whose turn it is; "" when all have had theirs."""
        return self._left[0].name if self._left else ""

    def _next(self, now: float) -> None:
        self._step, self._until = NOTICE, now + NOTICE_SECONDS
        if self._left:
            self._left[0].leave_seconds = self._seconds

    def advance(self, now: float, death_fd: int) -> None:
        child = self._left[0]
        if self._step == NOTICE and now >= self._until:
            self._step = LEAVING if child.running else COMING  # one that has just died is started again anyway
            self._until = now + self._seconds + KILL_SECONDS
            if self._step == LEAVING:
                child.retire()
        elif self._step == LEAVING and not child.running:
            child.start(death_fd)
            self._step = COMING
        elif self._step == LEAVING and now >= self._until:
            child.kill()
        elif self._step == COMING and child.ready:
            self._left.pop(0)
            self._next(now)
        elif self._step == COMING:
            child.kill_if_stuck(now, self._load_seconds)

    def expects(self, child: Child) -> bool:
        """It was told to end."""
        return self._step == LEAVING and child is self._left[0]
