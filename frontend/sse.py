"""One server-sent event stream: what arrives in one turn of the loop goes out in one write. What the events say is a `Wording`'s business.

While the client keeps up, events are written as they arrive and the request's task sleeps to its end. When the client falls behind, they wait
in the `Run` until what was written before has been sent, and then go out merged.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol

from aiohttp import web

from frontend.connections import cut
from frontend.errors import ApiError
from frontend.record import RECORD
from frontend.streams import ABORT, SLOW_READER, Event, Run

STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
OPENING_GRACE_SECONDS = 0.25
"""How long an accepted stream waits for its first token before its headers go out: a refusal of the scheduler still gets its HTTP status."""


class Wording(Protocol):
    """The bytes of one endpoint's events, for one request."""

    def opening(self) -> bytes:
        """What comes before all else. Made when that is there: until then another model may come in the place of the one that was to answer."""

    def said(self, events: Iterable[Event]) -> bytes:
        """What has arrived, in its order."""

    def said_late(self, events: Iterable[Event]) -> bytes:
        """The same of much that has waited: in fewer, longer events."""

    def closing(self) -> bytes:
        """The end of a stream that went well."""

    def failed(self, error: ApiError) -> bytes:
        """The end of one that did not."""


class EventStream:
    """The answer to one request; `most` as in Output."""

    def __init__(self, http: web.Request, run: Run, wording: Wording, most: int) -> None:
        self._http = http
        self._run = run
        self._wording = wording
        self._most = most
        self._begun = False

    async def send(self) -> web.StreamResponse:
        """To the end of the request. Raises ApiError when it is refused before anything was sent."""
        await self._run.opened(OPENING_GRACE_SECONDS)
        response = web.StreamResponse(headers=STREAM_HEADERS)
        writer, transport = await response.prepare(self._http), self._http.transport
        if writer is None or transport is None:
            raise ConnectionResetError("the client has gone")
        output = Output(transport, response.headers.get("Transfer-Encoding") == "chunked", self._most)
        self._output, self._run.writer = output, self._write
        try:
            self._write()
            while await self._run.held():
                await writer.drain()
                self._begin()
                output.write(self._wording.said_late(self._run.taken()))
            self._begin()
            last = self._wording.closing()
        except ApiError as error:
            last = self._wording.failed(error)
        finally:
            self._run.writer = None
            self._http[RECORD].sent += output.sent
        await response.write_eof(last)
        return response

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._output.write(self._wording.opening())

    def _write(self) -> bool:
        """Write what has arrived. False when the client has not read what was written before: then nothing is."""
        if not self._output.keeps_up(self._run):
            return False
        events = self._run.taken()
        if events:
            self._begin()
            self._output.write(self._wording.said(events))
        return True


class Output:
    """Writing to a connection at once, past the response, whose writing is a coroutine. Its writer's `drain` waits until all was sent.

    `sent` counts the bytes of it, which the writer knows nothing of. `most`: bytes of events that may wait in a `Run` while the client has not read
    all of what was written last, which may be one large event; with more the connection is cut and the request cancelled.
    """

    def __init__(self, transport: asyncio.Transport, chunked: bool, most: int) -> None:
        self._transport = transport
        self._chunked = chunked
        self._most = most
        self.sent = 0

    def keeps_up(self, run: Run) -> bool:
        """The client, or the system on the way to it, has taken all that was written before. One for whom too much waits in the `run` is cut off."""
        if self._transport.get_write_buffer_size() == 0:
            return True
        if run.weight() > self._most:
            cut(self._transport)
            run.fail(SLOW_READER, ABORT)
        return False

    def write(self, data: bytes) -> None:
        """Nothing happens when there is no data or the connection is lost: the request is about to be cancelled then."""
        if data and not self._transport.is_closing():
            framed = b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data
            self._transport.write(framed)
            self.sent += len(framed)
