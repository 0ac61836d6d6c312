"""A GPU's steps in a trace, told by the thread that reads their results."""

import time

from transport.trace import Span
from worker.resident.clock import DeviceClock
from worker.tracing import Tracing, Work


class StepTrace:
    """`anchored`: what `time.monotonic()` showed when the host saw the end of the event that the first step's gap counts from."""

    def __init__(self, tracing: Tracing, anchored: float) -> None:
        self._tracing = tracing
        self._clock = DeviceClock(anchored)
        self._here = False

    def finished(
        self, work: Work, applying: tuple[float, float], sending: tuple[float, float], launched: float, times: tuple[float, float] | None, seen: float
    ) -> None:
        """After the result was sent. `times`: seconds on the device and of the gap before, None when the device has no clock; `seen`: when the
        host saw the end. The others as in worker.resident.reader.Launched and worker.resident.parcel.Parcel."""
        sent = time.monotonic()
        if not self._here:
            self._here = True
            self._tracing.results_here()
        self._tracing.trace.add((self._spans, work, applying, sending, launched, times, seen, sent))

    def _spans(
        self, work: Work, applying: tuple[float, float], sending: tuple[float, float], launched: float, times: tuple[float, float] | None,
        seen: float, sent: float,
    ) -> list[Span]:  # fmt: skip
        tracing = self._tracing
        if times is None:
            computed = tracing.computed(work, launched, seen, seen - launched, 0.0)
        else:
            seconds, gap = times
            computed = tracing.computed(work, *self._clock.place(gap, seconds, seen), seconds, gap)
        return [*tracing.launched(work, *applying, sending, launched), computed, tracing.delivered(work, seen, sent)]
