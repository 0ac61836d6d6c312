"""Time as this process has seen it pass, for deadlines that are to count no other."""

import time
from collections.abc import Callable

MOST_SECONDS = 1.0


class Clock:
    """Seconds that never go back: between two looks at it MOST_SECONDS pass at most, however late the second one comes.

    The rest was spent stopped (Ctrl-Z, a frozen container, a machine that slept), or so short of the processor that others were too.
    """

    def __init__(self, source: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self.now = self._seen = source()

    def look(self) -> float:
        """What time it is now, which `now` is until the next look."""
        seen = self._source()
        self.now += min(seen - self._seen, MOST_SECONDS)
        self._seen = seen
        return self.now
