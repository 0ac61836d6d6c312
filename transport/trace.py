"""A process's part of a trace. To note a span costs about a microsecond; a thread of its own makes events of it and writes them. Nothing that
goes wrong with the file may disturb the process: then tracing ends, and that is all."""

import contextlib
import logging
import os
import threading
from collections import deque

import msgspec

from messages.trace import Event, Value
from transport.lifetime import ProcessArgs
from transport.trace_file import LIMIT_BYTES, TraceEnded, TraceFile

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
CHUNK_EVENTS = 32
"""Encoded in one go: other threads wait for the interpreter for so long."""
MOST_PENDING = 1 << 18
CLOSE_SECONDS = 2.0
FIRST_DEVICE = 1 << 23
"""Above every id of a thread in Linux: ids of the tracks that are no threads."""

Flow = tuple[int, int]
"""Session and step."""


class Span(msgspec.Struct, gc=False):
    """A span as it is noted; times in seconds. `flow`: of a step, for spans that arrows enter or leave."""

    track: int
    name: str
    begin: float
    end: float
    args: dict[str, Value]
    flow: Flow | None
    flow_in: bool
    flow_out: bool


def open_trace(args: ProcessArgs) -> "Trace | None":
    """This process's part of the trace; None when there is to be none."""
    return None if args.trace is None else Trace(args.trace, args.name)


class Trace:
    """Events for the file at `path`, which is there. Times are seconds of `time.monotonic()`."""

    def __init__(self, path: str, name: str, limit: int = LIMIT_BYTES) -> None:
        self._path = path
        self._limit = limit
        self._pid = os.getpid()
        self._events: deque[Event | Span] = deque()
        self._on = True
        self._closed = threading.Event()
        self._encode = msgspec.json.Encoder().encode
        self._extra = 0
        self.add(Event(name="process_name", ph="M", pid=self._pid, tid=self._pid, args={"name": name}))
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def add(self, event: Event | Span) -> None:
        if self._on:
            self._events.append(event)
            if len(self._events) > MOST_PENDING:
                self._end(f"the disk has not taken {MOST_PENDING} events in time")

    def thread(self, name: str) -> "Track":
        """The track of the calling thread."""
        return self._track(name, threading.get_native_id())

    def device(self, name: str) -> "Track":
        """A track for something that is no thread."""
        self._extra += 1
        return self._track(name, FIRST_DEVICE * self._extra + self._pid)

    def _track(self, name: str, number: int) -> "Track":
        self.add(Event(name="thread_name", ph="M", pid=self._pid, tid=number, args={"name": name}))
        self.add(Event(name="thread_sort_index", ph="M", pid=self._pid, tid=number, args={"sort_index": self._extra}))
        return Track(self, number)

    def long_span(self, name: str, key: int, begin: float, end: float, args: dict[str, Value]) -> None:
        """A span of a track of its own, beside others of its name that overlap it. `key` tells them apart."""
        number = f"0x{key:x}"
        self.add(Event(name=name, ph="b", cat=name, id=number, pid=self._pid, tid=self._pid, ts=micro(begin), args=args))
        self.add(Event(name=name, ph="e", cat=name, id=number, pid=self._pid, tid=self._pid, ts=micro(end)))

    def close(self) -> None:
        """Write what is left, but do not wait for ever."""
        self._closed.set()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        try:
            file = TraceFile(self._path, self._limit)
        except OSError as error:
            self._end(f"{error.strerror}: {self._path}")
            return
        try:
            while not self._closed.wait(FLUSH_SECONDS):
                self._flush(file)
            self._flush(file)
        except TraceEnded as error:
            self._end(str(error))
        finally:
            file.close()

    def _flush(self, file: TraceFile) -> None:
        for _ in range(1 + len(self._events) // CHUNK_EVENTS):
            events = self._take()
            if events:
                file.append(b"".join(self._encode(self._event(noted)) + b",\n" for noted in events))

    def _event(self, noted: Event | Span) -> Event:
        if isinstance(noted, Event):
            return noted
        return Event(
            name=noted.name, ph="X", pid=self._pid, tid=noted.track, ts=micro(noted.begin), dur=micro(max(0.0, noted.end - noted.begin)),
            args=noted.args, bind_id=flow_of(*noted.flow) if noted.flow is not None else "", flow_in=noted.flow_in, flow_out=noted.flow_out,
        )  # fmt: skip

    def _take(self) -> list[Event | Span]:
        """The oldest ones, so many that to encode them does not hold up the other threads."""
        events: list[Event | Span] = []
        with contextlib.suppress(IndexError):
            while len(events) < CHUNK_EVENTS:
                events.append(self._events.popleft())
        return events

    def _end(self, why: str) -> None:
        if self._on:
            self._on = False
            self._events.clear()
            log.error("the trace ends here, serving goes on: %s", why)


class Track:
    """One line of spans that follow each other or lie in each other."""

    def __init__(self, trace: Trace, number: int) -> None:
        self._trace = trace
        self._number = number

    def span(
        self, name: str, begin: float, end: float, args: dict[str, Value], flow: Flow | None = None, flow_in: bool = False, flow_out: bool = False
    ) -> None:
        """`flow`: of the step whose arrows enter or leave this span."""
        self._trace.add(Span(self._number, name, begin, end, args, flow, flow_in, flow_out))


def micro(seconds: float) -> float:
    """Microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)


def flow_of(session: int, step: int) -> str:
    """What joins the spans of one step in the file."""
    return f"0x{session:x}{step & 0xFFFFFFFF:08x}"
