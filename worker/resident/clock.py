"""When steps ran, on the host's clock."""

DRIFT = 1e-4
"""The most by which the clocks of host and device are taken to run apart, as a share of the time."""


class DeviceClock:
    """`anchored`: what the host's clock showed when it saw the end of an event (the anchor) on the device.

    From there on the device's own times are added up. The host sees the end of each step a little after it; the least such delay of late is
    what is left of error.
    """

    def __init__(self, anchored: float) -> None:
        self._time = 0.0
        self._offset = anchored
        self._last = anchored

    def place(self, gap: float, seconds: float, seen: float) -> tuple[float, float]:
        """Begin and end of a step of `seconds` that began `gap` seconds after the end of the one before, or after the anchor. The host saw its
        end at `seen`. Steps never overlap."""
        passed = gap + seconds
        self._time += passed
        self._offset = min(self._offset + DRIFT * passed, seen - self._time)
        end = max(self._offset + self._time, self._last)
        begin = max(end - seconds, self._last)
        self._last = end
        return begin, end
