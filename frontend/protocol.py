"""The HTTP connection: what fails before or beside the handlers gets the one shape of every error, and no traceback in the log.

Its bounds: the number of connections, the time that the head of a request may take, and the time in which a client reads nothing of what was
written for it. (The time between requests is aiohttp's own, that of a body is `frontend.core.read_body`'s.)
"""

import asyncio
from typing import Any, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_server import Server

from frontend.connections import Connections, cut
from frontend.errors import ApiError, invalid, unknown_expectation
from frontend.middleware import error_response, set_headers
from frontend.record import RECORD

FULL_RETRY_SECONDS = 1.0


class Connection(web.RequestHandler):
    """aiohttp's protocol with two of its answers replaced, counted and with a clock."""

    __slots__ = ("_all", "_clock", "_counted", "_stall", "_unsent")

    def __init__(self, manager: Server, connections: Connections, **options: Any) -> None:
        super().__init__(manager, **options)
        self._all = connections
        self._counted = False
        self._clock: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._unsent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._counted = self._all.enter()
        if self._counted:
            super().connection_made(transport)
            cast(asyncio.WriteTransport, transport).set_write_buffer_limits(high=1, low=0)  # with 0 an idle TLS connection counts as full
        else:
            error = ApiError(503, "too_many_connections", "Too many connections are open; try again soon.", retry_after=FULL_RETRY_SECONDS)
            _say(cast(asyncio.WriteTransport, transport), "503 Service Unavailable", error)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_clock()
        self._stop_stall()
        if self._counted:
            self._counted = False
            self._all.leave()
            super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport is None:
            return  # it was one too many, or is closed
        super().data_received(data)
        if not self._head_is_open():
            self._stop_clock()
        elif self._clock is None and data:
            self._clock = asyncio.get_running_loop().call_later(self._all.head_seconds, self._too_slow)

    def _head_is_open(self) -> bool:
        """Bytes came that make no whole head yet, and nothing else is done on this connection."""
        waiting = self._waiter is not None and not self._waiter.done()
        return not self._messages and (waiting or self._request_count == 0)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def pause_writing(self) -> None:
        """The system takes no more: a client that reads nothing for too long is cut off."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """All was taken."""
        self._stop_stall()
        super().resume_writing()

    def _watch(self) -> None:
        if self.transport is not None:
            self._unsent = self.transport.get_write_buffer_size()
            self._stall = asyncio.get_running_loop().call_later(self._all.stall_seconds, self._look)

    def _look(self) -> None:
        """Nothing was taken since the last time, or go on."""
        if self.transport is None:
            return
        if self.transport.get_write_buffer_size() < self._unsent:
            self._watch()
        else:
            self._all.stalled += 1
            cut(self.transport)

    def _stop_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _too_slow(self) -> None:
        self._clock = None
        if self._head_is_open() and self.transport is not None:
            error = ApiError(408, "timeout", f"The request's headers did not arrive within {self._all.head_seconds:g} s.")
            _say(self.transport, "408 Request Timeout", error)
            self.force_close()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """For bytes that are not an HTTP request: 400, said at debug level since any port scanner sends them."""
        if not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        error = _parse_error(exc)
        self.logger.debug("refused %s: %s", request.remote, error.message)
        response = error_response(error)
        set_headers(request, response)
        response.force_close()
        return response

    async def finish_response(self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None) -> Any:
        """The one HTTPException that no middleware sees, of an Expect header, becomes an ordinary error."""
        if isinstance(resp, web.HTTPExpectationFailed):
            resp = error_response(unknown_expectation())
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            if (record := request.get(RECORD)) is not None:
                record.end(request.writer.output_size)


def _say(transport: asyncio.WriteTransport, status: str, error: ApiError) -> None:
    """An error to a client of whom no request is known, and the end of the connection."""
    body = error.body()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Connection": "close", "Server": "pagewire", **error.headers()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    transport.write(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body)
    transport.close()


def _parse_error(error: HttpProcessingError) -> ApiError:
    if isinstance(error, LineTooLong):
        return invalid("The request line or a header is too long.", code="invalid_http")
    sentence = error.message.strip().partition("\n")[0].strip().rstrip(":.")
    return invalid(f"The request is not valid HTTP: {sentence[:200]}.", code="invalid_http")
