"""One server-sent event stream: each event is encoded once, and what arrives in one turn of the loop goes out in one write.

While the client keeps up, events are written as they arrive and the request's task sleeps to its end. When the client falls behind, they wait
in the `Run` until what was written before has been sent, and then go out as one event per choice.
"""

import asyncio
from collections.abc import Iterable

import msgspec
from aiohttp import web

from frontend.answers import Answer, Piece, usage, usage_so_far
from frontend.connections import cut
from frontend.errors import ApiError
from frontend.record import RECORD
from frontend.register import Entry
from frontend.schema import StreamOptions
from frontend.streams import ABORT, SLOW_READER, Event, Run

STREAM_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
OPENING_GRACE_SECONDS = 0.25
"""How long an accepted stream waits for its first token before its headers go out: a refusal of the scheduler still gets its HTTP status."""
_DONE = b"data: [DONE]\n\n"
_MARK = "\ue000"


class EventStream:
    """The answer to one request with `choices` sequences; `most` as in Output. The parts of its chunks that never change are encoded once, when the
    first one is there: until then another model may have come in the place of the one that was to answer."""

    def __init__(self, http: web.Request, entry: Entry, shapes: Answer, choices: int, options: StreamOptions, most: int) -> None:
        self._http = http
        self._entry = entry
        self._run = entry.run
        self._shapes = shapes
        self._choices = choices
        self._options = options
        self._most = most
        self._head = b""
        self._tail = b'],"usage":null}\n\n' if options.include_usage else b"]}\n\n"
        self._encode = msgspec.json.Encoder().encode
        self._around: list[tuple[bytes, bytes]] = []

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
                output.write(b"".join(self._event(self._shapes.chunk(index, piece)) for index, piece in _merged(self._run.taken())))
            self._begin()
            last = self._last()
        except ApiError as error:
            last = b"data: " + error.body() + b"\n\n" + _DONE
        finally:
            self._run.writer = None
            self._http[RECORD].sent += output.sent
        await response.write_eof(last)
        return response

    def _write(self) -> bool:
        """Write what has arrived. False when the client has not read what was written before: then nothing is."""
        if not self._output.keeps_up(self._run):
            return False
        events = self._run.taken()
        if events:
            self._begin()
        encode, around = self._encode, self._around
        parts: list[bytes] = []
        for index, event in events:
            if around and isinstance(event, str):
                before, after = around[index]
                parts += (before, encode(event), after)
            else:
                piece = Piece(event, []) if isinstance(event, str) else Piece.of(event)
                parts.append(self._event(self._shapes.chunk(index, piece)))
        self._output.write(b"".join(parts))
        return True

    def _begin(self) -> None:
        """Before the first chunk: what all of them have, and those that open each choice."""
        if self._head:
            return
        entry, run = self._entry, self._run
        head = {"id": entry.id, "object": self._shapes.chunk_object, "created": entry.created, "model": run.model}
        self._head = b"data: " + msgspec.json.encode(head)[:-1] + b',"choices":['
        if not self._options.continuous_usage_stats:
            self._around = [self._frame(index) for index in range(self._choices)]
        openings = [self._shapes.opening(index) for index in range(self._choices)]
        self._output.write(b"".join(self._event(choice) for choice in openings if choice is not None))

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text in a chunk of nothing else."""
        before, _, after = self._event(self._shapes.chunk(index, Piece(_MARK, []))).rpartition(self._encode(_MARK))
        return before, after

    def _event(self, choice: msgspec.Struct) -> bytes:
        if self._options.continuous_usage_stats:
            return self._head + self._encode(choice) + b'],"usage":' + self._encode(usage_so_far(self._run)) + b"}\n\n"
        return self._head + self._encode(choice) + self._tail

    def _last(self) -> bytes:
        if not self._options.include_usage:
            return _DONE
        return self._head + b'],"usage":' + self._encode(usage(self._run)) + b"}\n\n" + _DONE


class Output:
    """Writing to a connection at once, past the response, whose writing is a coroutine. Its writer's `drain` waits until all was sent.

    `sent` counts the bytes of data. `most`: bytes of events that may wait in a `Run` while the client has not read all of what was written last,
    which may be one large event; with more the connection is cut and the request cancelled.
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
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
            self.sent += len(data)


def _merged(events: Iterable[Event]) -> list[tuple[int, Piece]]:
    """One piece per choice: a slow reader gets fewer, longer chunks."""
    texts: dict[int, list[str]] = {}
    pieces: dict[int, Piece] = {}
    for index, event in events:
        piece = pieces.setdefault(index, Piece("", []))
        if not isinstance(event, str):
            piece.extend(event)
        texts.setdefault(index, []).append(event if isinstance(event, str) else event.text)
    for index, piece in pieces.items():
        piece.text = "".join(texts[index])
    return list(pieces.items())
