"""Events of a response on their way to a client: as they are made, and from those that are kept."""

from collections.abc import Callable

from aiohttp import web

from frontend.core import Core
from frontend.errors import ApiError, invalid
from frontend.record import RECORD
from frontend.register import Entry
from frontend.responses.body import ResponseBody, usage
from frontend.responses.events import Event, EventLog, StreamError, wire
from frontend.responses.recorder import Recorder
from frontend.sse import OPENING_GRACE_SECONDS, STREAM_HEADERS, Output
from messages.text import Problem

EVENTS_AT_ONCE = 256


class LiveStream:
    """The answer to one request, streamed while it is made. As in `frontend.sse`, no token wakes a task while the client keeps up."""

    def __init__(self, core: Core, http: web.Request, entry: Entry, body: ResponseBody, ended_well: Callable[[], None]) -> None:
        """`ended_well` is called before the client hears of the end, so that it finds then what it asks for."""
        self._http = http
        self._ended_well = ended_well
        self._most = core.args.security.max_unsent_bytes
        self._run = entry.run
        self._events: list[Event] = []
        self.recorder = Recorder(body, self._events.append, lambda: core.view.call_id_length)

    async def send(self) -> web.StreamResponse:
        """To the end of the request. Raises ApiError when it is refused before anything was sent."""
        await self._run.opened(OPENING_GRACE_SECONDS)
        response = web.StreamResponse(headers=STREAM_HEADERS)
        writer, transport = await response.prepare(self._http), self._http.transport
        if writer is None or transport is None:
            raise ConnectionResetError("the client has gone")
        self._output = Output(transport, response.headers.get("Transfer-Encoding") == "chunked", self._most)
        self.recorder.accept()
        self._run.writer = self._write
        try:
            self._write()
            while await self._run.held():
                await writer.drain()
                self._take(behind=True)
            self.recorder.conclude(usage(self._run))
            self._ended_well()
        except ApiError as error:
            self.recorder.fail(problem_of(error))
        finally:
            self._run.writer = None
            self._http[RECORD].sent += self._output.sent
        await response.write_eof(self._encoded())
        return response

    def _write(self) -> bool:
        """Write what has arrived. False when the client has not read what was written before: then nothing is."""
        if not self._output.keeps_up(self._run):
            return False
        self._take()
        return True

    def _take(self, behind: bool = False) -> None:
        """`behind`: the client has not kept up."""
        self.recorder.take(self._run.taken(), behind)
        self._output.write(self._encoded())

    def _encoded(self) -> bytes:
        data = b"".join(map(wire, self._events))
        self._events.clear()
        return data


def problem_of(error: ApiError) -> Problem:
    return Problem(status=error.status, code=error.code or "error", message=error.message, param=error.param)


async def follow(http: web.Request, log: EventLog, number: int) -> web.StreamResponse:
    """The events of `log` from this number on, to its end. Raises ApiError 400 when the first of them is gone."""
    if log.since(number, 0) is None:
        raise invalid(f"The events before {log.first} are gone; the response itself has the whole text.", "starting_after", "events_gone")
    if http.method == "HEAD":
        return web.Response(headers=STREAM_HEADERS)
    response = web.StreamResponse(headers=STREAM_HEADERS)
    await response.prepare(http)
    while True:
        events = log.since(number, EVENTS_AT_ONCE)
        if events is None:
            await response.write(wire(StreamError(number, "too_slow", "Events were made faster than they were read; those up to here are gone.")))
            break
        if not events:
            if log.ended:
                break
            await log.more(number)
            continue
        await response.write(b"".join(map(wire, events)))
        number += len(events)
    await response.write_eof()
    return response
