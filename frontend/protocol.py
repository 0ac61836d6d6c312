"""The HTTP connection: what fails before or beside the handlers gets the one shape of every error, and no traceback in the log."""

from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from frontend.errors import ApiError, invalid
from frontend.middleware import error_response, set_headers
from frontend.record import RECORD


class Connection(web.RequestHandler):
    """aiohttp's protocol with two of its answers replaced."""

    __slots__ = ()

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
        """An HTTPException that no middleware has seen (417 for Expect) becomes an ordinary error."""
        if isinstance(resp, web.HTTPException):
            resp = error_response(ApiError(resp.status, None, f"{resp.reason}."))
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            if (record := request.get(RECORD)) is not None:
                record.end(resp.body_length)


def _parse_error(error: HttpProcessingError) -> ApiError:
    if isinstance(error, LineTooLong):
        return invalid("The request line or a header is too long.", code="invalid_http")
    sentence = error.message.strip().partition("\n")[0].strip().rstrip(":.")
    return invalid(f"The request is not valid HTTP: {sentence[:200]}.", code="invalid_http")
