"""What responses hold in memory while they run in the background: bounded for each and for all together. One that goes over is ended."""

from frontend.responses.events import EVENT_BYTES, Event, EventLog, weight
from frontend.responses.store import Kept, Store
from messages.text import Problem

MAX_BYTES = 64 << 20
MAX_TOTAL_BYTES = 1 << 30
TOO_LARGE = Problem(status=400, code="response_too_large", message=f"The response has come to more than the {MAX_BYTES} bytes that are kept of one.")
_CROWDED = "Responses in the background have come to more than is kept of all of them, and this was the largest of who has most."
NO_ROOM = Problem(status=507, code="background_full", message=_CROWDED)


class Volume:
    """Of one response, whose events go through it to `log`."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._said = 0

    def add(self, event: Event) -> None:
        self._said += weight(event) - EVENT_BYTES
        self._log.add(event)

    @property
    def held(self) -> int:
        """Bytes of memory, about: of all it has said, and of the events that are kept besides what they say."""
        return self._said + EVENT_BYTES * (self._log.next - self._log.first)


def check(store: Store, kept: Kept, volume: Volume) -> None:
    """`kept` has grown, perhaps. Ends it, or the largest one of the key that has most, when that is too much."""
    store.hold(kept, volume.held)
    if kept.held > MAX_BYTES:
        _fail(kept, TOO_LARGE)
    elif store.held_bytes > MAX_TOTAL_BYTES:
        _fail(store.heaviest(), NO_ROOM)


def _fail(kept: Kept, problem: Problem) -> None:
    if kept.stop is not None:
        kept.stop.fail(problem)
