"""A load generator that costs little: streamed completions over plain sockets in one thread, whose events are counted and not decoded.

For servers that write their chunks as Pagewire does: one thread of this follows hundreds of streams at tens of thousands of tokens a second,
where a real client would need more of the machine than the server it measures.
"""

import json
import re
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from launcher.errors import LauncherError
from launcher.load import Outcome

CHOICE = b'"choices":[{'
"""In every event with text and in no other, and never in a text, whose quotes are escaped."""
DONE = b"data: [DONE]\n\n"
STAMP = b'"text":" @'
CARRIED = 1024
"""Bytes kept of what came before: a mark may be cut, and the usage stands before the end."""
READ_BYTES = 256 << 10
TICK_SECONDS = 0.05
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")

Address = tuple[str, int]
Tick = Callable[[], None]


def events_of(answer: bytes) -> list[dict[str, Any]]:
    """The JSON events of a streamed answer as it came over the wire: a head and chunks."""
    rest, body = answer.partition(b"\r\n\r\n")[2], b""
    while rest and (size := int(rest[: (line := rest.index(b"\r\n"))], 16)):
        body += rest[line + 2 : line + 2 + size]
        rest = rest[line + 4 + size :]
    return [json.loads(event[6:]) for event in body.split(b"\n\n") if event.startswith(b"data: {")]


class Load:
    """Sends `bodies` to the completions endpoint at `address`, all at once. `outcomes` are in their order.

    A gap of an outcome is the time between two reads that had text: texts that came together have no time between them. `delays` are seconds
    between the moment a null engine stamped the last text of a read and the read, and empty with any other engine. `tick` is called 20 times a
    second. `later` is one more request: so many seconds after the others, and its body; its outcome is the last one. With `keep` the answers are in
    `kept`, in the same order, as they came over the wire.
    """

    def __init__(
        self, address: Address, bodies: Sequence[bytes], timeout: float, tick: Tick, later: tuple[float, bytes] | None = None, keep: bool = False
    ) -> None:
        self._address = address
        self._keep = keep
        self.kept: list[list[bytes]] = []
        self._timeout = timeout
        self._tick = tick
        self._selector = selectors.DefaultSelector()
        self._waiting = [(0.0, body) for body in bodies] + ([] if later is None else [later])
        self.outcomes: list[Outcome] = []
        self.delays: list[float] = []
        self.seconds = 0.0

    def run(self) -> None:
        """To the end of all of them. Raises LauncherError when they have not ended after `timeout` seconds."""
        began = time.perf_counter()
        try:
            self._follow(began)
        finally:
            for key in list(self._selector.get_map().values()):
                key.data.socket.close()
            self._selector.close()
        self.seconds = max((outcome.ended for outcome in self.outcomes), default=began) - began

    def _follow(self, began: float) -> None:
        now = ticked = began
        while self._waiting or self._selector.get_map():
            while self._waiting and now - began >= self._waiting[0][0]:
                self._open(self._waiting.pop(0)[1], now)
            for key, _ in self._selector.select(TICK_SECONDS):
                self._turn(key.data)
            now = time.perf_counter()
            if now - ticked > TICK_SECONDS:
                ticked = now
                self._tick()
            if now - began > self._timeout:
                raise LauncherError(f"the load had not ended after {self._timeout:.0f} s")

    def _open(self, body: bytes, now: float) -> None:
        outcome = Outcome(due=now, sent=now)
        self.outcomes.append(outcome)
        stream = _Stream(self._address, body, outcome, self.delays)
        if self._keep:
            self.kept.append(stream.keep())
        self._selector.register(stream.socket, selectors.EVENT_WRITE, stream)

    def _turn(self, stream: "_Stream") -> None:
        if stream.unsent:
            if stream.send():
                self._selector.modify(stream.socket, selectors.EVENT_READ, stream)
        elif stream.read():
            self._selector.unregister(stream.socket)
            stream.socket.close()


class _Stream:
    """One request on a connection of its own."""

    def __init__(self, address: Address, body: bytes, outcome: Outcome, delays: list[float]) -> None:
        self._outcome = outcome
        self._delays = delays
        self._tail = b""
        self._started = False
        self._kept: list[bytes] | None = None
        self.socket = socket.create_connection(address)
        self.socket.setblocking(False)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {address[0]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self.unsent = memoryview(head.encode() + body)

    def keep(self) -> list[bytes]:
        """Where all that comes from now on is kept."""
        self._kept = kept = list[bytes]()
        return kept

    def send(self) -> bool:
        """What the socket takes; True when all has been sent."""
        try:
            self.unsent = self.unsent[self.socket.send(self.unsent) :]
        except OSError:
            self.unsent = self.unsent[:0]  # the answer, or reading, says why
        return not self.unsent

    def read(self) -> bool:
        """What is there; True at the end."""
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            return self._end(type(error).__name__)
        if self._kept is not None:
            self._kept.append(data)
        return self._read(data) if data else self._end("stream cut")

    def _read(self, data: bytes) -> bool:
        now = time.perf_counter()
        if not self._started:
            return self._begin(data)
        seen = self._tail + data
        fresh = seen.count(CHOICE, max(0, len(self._tail) - len(CHOICE) + 1))
        if fresh:
            self._note(fresh, data, now)
        self._tail = seen[-CARRIED:]
        return self._end(None) if DONE in seen else False

    def _begin(self, data: bytes) -> bool:
        """The head, perhaps with events behind it."""
        self._tail += data
        head, found, rest = self._tail.partition(b"\r\n\r\n")
        if not found:
            return False
        status = _STATUS.match(head)
        if status is None or status[1] != b"200":
            return self._end(f"HTTP {status[1].decode() if status else 'error'}")
        self._started, self._tail = True, b""
        return self._read(rest) if rest else False

    def _note(self, fresh: int, data: bytes, now: float) -> None:
        outcome = self._outcome
        if outcome.last is None:
            outcome.first = now
        else:
            outcome.gaps.append(now - outcome.last)
        outcome.last = now
        outcome.texts += fresh
        if (at := data.rfind(STAMP)) >= 0 and (end := data.find(b'"', at + len(STAMP))) > 0:
            self._delays.append((time.monotonic_ns() - int(data[at + len(STAMP) : end])) / 1e9)

    def _end(self, error: str | None) -> bool:
        outcome = self._outcome
        outcome.ended, outcome.error = time.perf_counter(), error
        if error is None:
            self._read_end(outcome)
        return True

    def _read_end(self, outcome: Outcome) -> None:
        """The usage, or the error, in the last events."""
        events = [part.partition(b"data: ")[2] for part in self._tail.split(b"\n\n")]
        for event in events:
            if event.startswith(b'{"error"'):
                outcome.error = f"stream error {json.loads(event)['error'].get('code')}"
            elif b'"choices":[],' in event:
                usage: dict[str, Any] = json.loads(event)["usage"]
                outcome.prompt_tokens, outcome.tokens = usage["prompt_tokens"], usage["completion_tokens"]
