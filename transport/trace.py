"""A process's part of a trace. To note something costs half a microsecond or a little more; a thread of its own makes events of it and writes
them. Nothing that goes wrong with the file may disturb the process: then tracing ends, and that is all."""

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from messages.trace import CUT, Event, Value
from transport.lifetime import ProcessArgs
from transport.trace_file import LIMIT_BYTES, TraceEnded, TraceFile

log = logging.getLogger(__name__)

FLUSH_SECONDS = 0.5
CHUNK = 16
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


Make = Callable[..., Iterable[Span]]


def open_trace(args: ProcessArgs) -> "Trace | None":
    """This process's part of the trace; None when there is to be none."""
    return None if args.trace is None else Trace(args.trace, args.name)


class Trace:
    """Events for the file at `path`, which is there. Times are seconds of `time.monotonic()`."""

    def __init__(self, path: str, name: str, limit: int = LIMIT_BYTES) -> None:
        self._path = path
        self._name = name
        self._limit = limit
        self._pid = os.getpid()
        self._noted: deque[Event | Span | tuple[Any, ...]] = deque()
        self._on = True
        self._closed = threading.Event()
        self._encode = msgspec.json.Encoder().encode
        self._extra = 0
        self.add(Event(name="process_name", ph="M", pid=self._pid, tid=self._pid, args={"name": name}))
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def add(self, noted: Event | Span | tuple[Any, ...]) -> None:
        """Events and spans, and tuples of a `Make` and its arguments, which the writing thread calls, in order: the cheapest way."""
        if self._on:
            self._noted.append(noted)
            if len(self._noted) > MOST_PENDING:
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
            if not self._on:
                self._say_cut(file)
            file.close()

    def _say_cut(self, file: TraceFile) -> None:
        """In the file, for who reads it later; past its limit, if need be."""
        event = Event(name=CUT, ph="i", s="p", pid=self._pid, tid=self._pid, ts=time.monotonic() * 1e6, args={"name": self._name})
        with contextlib.suppress(OSError):
            file.append_whole(self._encode(event) + b",\n")

    def _flush(self, file: TraceFile) -> None:
        for _ in range(1 + len(self._noted) // CHUNK):
            lines = b"".join(self._encode(event) + b",\n" for event in self._events())
            if lines:
                file.append(lines)

    def _events(self) -> Iterator[Event]:
        """Of what was noted first, and not too many."""
        for _ in range(min(CHUNK, len(self._noted))):
            try:
                noted = self._noted.popleft()
            except IndexError:  # tracing has ended meanwhile
                return
            if isinstance(noted, Event):
                yield noted
            elif isinstance(noted, Span):
                yield self._event(noted)
            else:
                make, *values = noted
                yield from map(self._event, make(*values))

    def _event(self, span: Span) -> Event:
        begin, end = micro(span.begin), micro(span.end)  # both rounded, so that a span which follows another does not overlap it
        return Event(
            name=span.name, ph="X", pid=self._pid, tid=span.track, ts=begin, dur=max(0.0, round(end - begin, 3)),
            args=span.args, bind_id="" if span.flow is None else flow_of(*span.flow), flow_in=span.flow_in, flow_out=span.flow_out,
        )  # fmt: skip

    def _end(self, why: str) -> None:
        if self._on:
            self._on = False
            self._noted.clear()
            log.error("the trace ends here, serving goes on: %s", why)


class Track:
    """One line of spans that follow each other or lie in each other."""

    def __init__(self, trace: Trace, number: int) -> None:
        self._trace = trace
        self._number = number

    def span(
        self, name: str, begin: float, end: float, args: dict[str, Value], flow: Flow | None = None, flow_in: bool = False, flow_out: bool = False
    ) -> Span:
        """A span on this track, not yet noted. `flow`: of the step whose arrows enter or leave it."""
        return Span(self._number, name, begin, end, args, flow, flow_in, flow_out)

    def add(self, name: str, begin: float, end: float, args: dict[str, Value]) -> None:
        self._trace.add(self.span(name, begin, end, args))


def micro(seconds: float) -> float:
    """Microseconds, to the nanosecond."""
    return round(seconds * 1e6, 3)


def flow_of(session: int, step: int) -> str:
    """What joins the spans of one step in the file."""
    return f"0x{session:x}{step & 0xFFFFFFFF:08x}"
