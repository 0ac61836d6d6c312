"""Whether the main loop still comes round, for the heartbeat thread."""

import time

STUCK_SECONDS = 60.0
"""A loop that has not come round for this long is not called alive: no step should take that long."""


class Pulse:
    """When the main loop last came round, for the heartbeat thread. Counts as alive until `beat` is called for the first time."""

    def __init__(self) -> None:
        self._last: float | None = None

    def beat(self) -> None:
        self._last = time.monotonic()

    def alive(self) -> bool:
        return self._last is None or time.monotonic() - self._last < STUCK_SECONDS
