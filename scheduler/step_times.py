"""Where the time goes, as counters of seconds that only rise: the worker's within steps, and the scheduler's own for plans."""

import msgspec

from messages.result import StepResult

MOST_SECONDS = 3600.0
"""Of one step: whatever a worker claims, the counters stay numbers."""


class StepTimes:
    """Since `began`. Idle is what is left of the time between two looks: steps of one worker do not overlap."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._worker = 0.0
        self._plan = 0.0

    def received(self, message: msgspec.Struct) -> None:
        """Of all messages, results are counted."""
        if isinstance(message, StepResult) and 0 <= message.seconds <= MOST_SECONDS:
            self._worker += message.seconds

    def planned(self, seconds: float) -> None:
        self._plan += seconds

    def counters(self, now: float) -> dict[str, float]:
        """`seconds` is the time in which the others, and all counters told with them, have come about."""
        return {"seconds": now - self._began, "worker_seconds": self._worker, "plan_seconds": self._plan}
