"""The aiohttp application: which handler answers which path."""

import contextlib
from collections.abc import Awaitable, Callable

from aiohttp import HttpVersion11, web

from frontend import anthropic, catalogue, health, reference
from frontend.access import CALLER
from frontend.cancelling import cancel_requests
from frontend.chat import chat_completions
from frontend.completions import completions
from frontend.core import Core, check_head
from frontend.embeddings import embeddings
from frontend.errors import ApiError
from frontend.explain import cancel_request, list_requests, show_request
from frontend.keepers import STAY
from frontend.live.routes import LivePage
from frontend.middleware import LIMITS, Boundary, Handler
from frontend.record import RECORD
from frontend.responses import routes as responses
from frontend.tokens import detokenize, tokenize

Endpoint = Callable[[Core, web.Request], Awaitable[web.StreamResponse]]


def make_app(core: Core) -> web.Application:
    """All routes. Those made by `_when_started` and `_within_limits` answer 503 with Retry-After until the cluster has been ready once."""
    boundary = Boundary(core)

    @web.middleware
    async def outermost(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await boundary.handle(request, handler)

    app = web.Application(middlewares=[outermost], client_max_size=core.args.body_limit)
    app.on_response_prepare.append(boundary.add_headers)
    routes = app.router
    LivePage(core).add_routes(app)
    routes.add_get("/version", _plain(core, health.version))
    routes.add_get("/openapi.json", _plain(core, reference.openapi))
    routes.add_get("/docs", _plain(core, reference.docs))
    routes.add_get("/metrics", _plain(core, health.metrics))
    routes.add_get("/health", _plain(core, health.ready))
    routes.add_get("/health/live", _plain(core, health.live))
    routes.add_get("/health/ready", _plain(core, health.ready))
    routes.add_get("/health/startup", _plain(core, health.startup))
    routes.add_get("/v1/models", _when_started(core, catalogue.list_models))
    routes.add_get("/v1/models/{id:.+}", _when_started(core, catalogue.show_model))
    routes.add_get("/v1/requests", _plain(core, list_requests))
    routes.add_delete("/v1/requests", _plain(core, cancel_requests))
    routes.add_get("/v1/requests/{id:.+}", _plain(core, show_request))
    routes.add_delete("/v1/requests/{id:.+}", _plain(core, cancel_request))
    routes.add_get("/v1/responses/{id}", _plain(core, responses.retrieve))
    routes.add_delete("/v1/responses/{id}", _plain(core, responses.delete))
    routes.add_post("/v1/responses/{id}/cancel", _plain(core, responses.cancel))
    routes.add_get("/v1/responses/{id}/input_items", _plain(core, responses.input_items))
    expect = _expect(core)
    routes.add_post("/tokenize", _when_started(core, tokenize), expect_handler=expect)
    routes.add_post("/detokenize", _when_started(core, detokenize), expect_handler=expect)
    routes.add_post("/v1/chat/completions", _within_limits(core, chat_completions), expect_handler=expect)
    routes.add_post("/v1/completions", _within_limits(core, completions), expect_handler=expect)
    routes.add_post("/v1/responses", _within_limits(core, responses.create), expect_handler=expect)
    routes.add_post("/v1/messages", _within_limits(core, anthropic.messages), expect_handler=expect)
    routes.add_post("/v1/messages/count_tokens", _when_started(core, anthropic.count_tokens), expect_handler=expect)
    routes.add_post("/v1/embeddings", _within_limits(core, embeddings), expect_handler=expect)
    return app


def _expect(core: Core) -> Callable[[web.Request], Awaitable[None]]:
    """Answers `Expect: 100-continue`. A body that will be refused by its headers (a key, a length) is not asked for: the handler says why."""

    async def handle(request: web.Request) -> None:
        if request.version != HttpVersion11:
            return
        if request.headers["Expect"].lower() != "100-continue":
            raise web.HTTPExpectationFailed
        with contextlib.suppress(ApiError):
            core.access.caller(request.headers)
            check_head(request, core.args.body_limit)
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0

    return handle


def _plain(core: Core, endpoint: Endpoint) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await endpoint(core, request)

    return handle


def _when_started(core: Core, endpoint: Endpoint) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        with core.admitted:
            core.view.require_accepting()
            await core.view.informed()
            core.view.require_accepting()
            return await endpoint(core, request)

    return handle


def _within_limits(core: Core, endpoint: Endpoint) -> Handler:
    """As `_when_started`; counted, and perhaps refused, before its body is read, by the limits of its key."""

    async def counted(core: Core, request: web.Request) -> web.StreamResponse:
        caller = request[CALLER]
        async with core.keepers.entered(caller.name, caller.limits, request[RECORD]) as place:
            request[LIMITS], request[STAY] = place.headers, place.stay
            return await endpoint(core, request)

    return _when_started(core, counted)
