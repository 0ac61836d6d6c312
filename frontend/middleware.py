"""Around every request: its id, its log line, and that every error has the one shape."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable

from aiohttp import web

from frontend.access import CALLER, OPEN_ROUTES
from frontend.core import Core
from frontend.errors import ApiError, too_large
from frontend.keepers import Headers, nothing
from frontend.record import CLIENT_CLOSED, RECORD, Record, record_of

log = logging.getLogger("frontend.access")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
LIMITS: web.RequestKey[Headers] = web.RequestKey("limits")
MAX_ID_LENGTH = 128
ANTHROPIC_PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
PROBES = frozenset({"/health", "/health/live", "/health/ready", "/health/startup", "/metrics"})
"""Asked every few seconds by machines: their log lines are at debug level."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._:/+=@-]")


def request_id(header: str | None) -> str:
    """The client's id, cut and with odd characters replaced, or a new one. For people only: never a key inside."""
    return _UNSAFE.sub("_", header[:MAX_ID_LENGTH]) if header else uuid.uuid4().hex


def error_response(error: ApiError, headers: dict[str, str] | None = None, anthropic: bool = False) -> web.Response:
    body = error.anthropic_body() if anthropic else error.body()
    return web.Response(status=error.status, body=body, content_type="application/json", headers={**(headers or {}), **error.headers()})


def _is_anthropic(request: web.Request) -> bool:
    """Its errors have another shape."""
    return request[RECORD].path in ANTHROPIC_PATHS


def set_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """What every response has: the server's name and the request's id."""
    response.headers["Server"] = "pagewire"
    response.headers["X-Request-Id"] = request.get(REQUEST_ID) or request_id(request.headers.get("X-Request-Id"))


def _is_open(request: web.Request) -> bool:
    """By the route that will answer, not by the text of the path."""
    resource = request.match_info.route.resource
    return resource is not None and resource.canonical in OPEN_ROUTES


class Boundary:
    """The outermost middleware."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def handle(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        request[REQUEST_ID] = request_id(request.headers.get("X-Request-Id"))
        record = request[RECORD] = record_of(request, request[REQUEST_ID], self._core.watchers)
        if record.generates:
            self._core.metrics.received.inc()
            self._core.metrics.requests_live.inc()
        try:
            response = await self._answered(request, handler)
            record.status = response.status
            self._count(record)
            self._core.metrics.went_wrong(record.problem)
            return response
        except (asyncio.CancelledError, ConnectionError):
            self._core.metrics.http(record.handler, record.method, CLIENT_CLOSED)
            self._core.metrics.went_wrong(record.problem)
            record.end(request.writer.output_size)
            raise
        finally:
            if record.generates:
                self._core.metrics.requests_live.dec()
            seconds = time.monotonic() - record.began
            level = logging.DEBUG if record.path in PROBES or self._core.args.access_log is not None else logging.INFO
            log.log(level, "%s %s %d %.1f ms %s", request.method, record.path, record.status, seconds * 1000, record.request_id)

    def _count(self, record: Record) -> None:
        """Answered; whether the client takes the answer is another matter."""
        self._core.metrics.http(record.handler, record.method, record.status)
        if record.generates and record.status >= 400:
            self._core.metrics.refused(record.status)
            if record.status == 429:
                self._core.metrics.limited(record.problem)

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Signal handler: runs before the headers of a response go out."""
        set_headers(request, response)
        response.headers.update(request.get(LIMITS, nothing)())
        self._core.cors.mark(request, response)
        if self._core.view.leaving:
            response.force_close()
            response.headers["Connection"] = "close"

    async def _answered(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        async def asked() -> web.StreamResponse:
            if (preflight := self._core.cors.preflight(request)) is not None:
                return preflight
            if not _is_open(request):
                request[CALLER] = self._core.access.caller(request.headers)
            return await handler(request)

        return await answered(request, asked(), self._core.args.body_limit)


async def answered(request: web.Request, asked: Awaitable[web.StreamResponse], body_limit: int) -> web.StreamResponse:
    """The answer, or the error that it has become. `body_limit`: what the body of this `request` may have, in bytes."""
    try:
        return await asked
    except (asyncio.CancelledError, ConnectionError):
        raise
    except ApiError as error:
        request[RECORD].error = error.code
        return error_response(error, anthropic=_is_anthropic(request))
    except web.HTTPException as error:
        return _http_error(request, error, body_limit)
    except Exception:  # whatever one request meets, it is answered and the others go on
        log.exception("handling %s failed", request[REQUEST_ID])
        return error_response(ApiError(500, "internal_error", "The server made a mistake; its log has more."), anthropic=_is_anthropic(request))


def _http_error(request: web.Request, error: web.HTTPException, body_limit: int) -> web.Response:
    path = request[RECORD].path
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return error_response(too_large(body_limit), anthropic=_is_anthropic(request))
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        refusal = ApiError(405, "method_not_allowed", f"Method {request.method} is not allowed on {path}; use {allowed}.")
        return error_response(refusal, {"Allow": allowed}, _is_anthropic(request))
    if error.status == 404:
        return error_response(ApiError(404, "not_found", f"There is nothing at {path or request.method}; /docs says what there is."))
    return error_response(ApiError(error.status, None, f"{error.reason}."))
