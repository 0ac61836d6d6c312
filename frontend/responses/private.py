"""The routes that other frontends ask through their links: the same ones, behind a socket that only this user's processes reach."""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from frontend.access import CALLER
from frontend.core import Core
from frontend.errors import invalid
from frontend.keepers import STAY
from frontend.middleware import REQUEST_ID, Handler, answered, request_id
from frontend.record import RECORD, record_of
from frontend.responses import routes
from frontend.responses.links import read_caller, read_stay


def make_private_app(core: Core) -> web.Application:
    """It counts nothing and writes no lines: the frontend that has the client does. Errors are those that clients get."""

    @web.middleware
    async def outermost(request: web.Request, handler: Handler) -> web.StreamResponse:
        request[REQUEST_ID] = request_id(request.headers.get("X-Request-Id"))
        request[RECORD] = record_of(request, request[REQUEST_ID], ())
        request[routes.FORWARDED] = True

        async def asked() -> web.StreamResponse:
            _know(request)
            return await handler(request)

        return await answered(request, asked(), core.args.body_limit)

    async def conversation(core: Core, http: web.Request) -> web.StreamResponse:
        items = routes.conversation(core, http, http.match_info["id"])
        return web.Response(body=msgspec.json.encode(items), content_type="application/json")

    def add(method: str, path: str, endpoint: Callable[[Core, web.Request], Awaitable[web.StreamResponse]]) -> None:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await endpoint(core, request)

        for each in (method, "HEAD") if method == "GET" else (method,):
            app.router.add_route(each, path, handle)

    app = web.Application(middlewares=[outermost], client_max_size=core.args.body_limit)
    add("POST", "/v1/responses", routes.create)
    add("GET", "/v1/responses/{id}", routes.retrieve)
    add("DELETE", "/v1/responses/{id}", routes.delete)
    add("POST", "/v1/responses/{id}/cancel", routes.cancel)
    add("GET", "/v1/responses/{id}/input_items", routes.input_items)
    add("GET", "/conversations/{id}", conversation)
    return app


def _know(request: web.Request) -> None:
    """Who has sent it, and what it counts as, in the words of the frontend that has sent it on."""
    try:
        request[CALLER] = read_caller(request.headers)
        if (stay := read_stay(request.headers)) is not None:
            request[STAY] = stay
    except (msgspec.DecodeError, ValueError) as error:
        raise invalid("This socket is for frontends.") from error
