"""The live page and its data: GET /, /static/{name} and /live/events; POST /live/drain and /live/resume for administrators."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from frontend import health
from frontend.access import CALLER
from frontend.core import Core
from frontend.errors import ApiError
from frontend.json_response import json_response
from frontend.live import frames
from frontend.live.assets import PAGE, Assets
from frontend.live.control import Intake, order, require_admin
from frontend.live.hub import Hub
from frontend.sse import STREAM_HEADERS
from frontend.version import VERSION
from messages.change import DrainCommand, ResumeCommand

SILENCE_SECONDS = 15.0
"""A stream with nothing to say says so this often, and finds out whether anybody is there."""
WRITE_SECONDS = 30.0
_ALIVE = b":\n\n"


class LivePage:
    """The handlers. The files are read when the first of them is asked for."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._assets: Assets | None = None
        self._hub: Hub | None = None

    def add_routes(self, app: web.Application) -> None:
        app.router.add_get("/", self._root)
        app.router.add_get("/static/{name}", self._file)
        app.router.add_get("/live/events", self._events)
        app.router.add_post("/live/drain", self._drain)
        app.router.add_post("/live/resume", self._resume)
        app.cleanup_ctx.append(self._life)

    async def _life(self, app: web.Application) -> AsyncIterator[None]:
        core = self._core
        self._assets = await asyncio.to_thread(Assets)
        hub = self._hub = Hub(core.args.run_dir, core.view, core.metrics, core.register)
        sampling = asyncio.create_task(hub.run())

        async def close(_: web.Application) -> None:
            hub.close()

        app.on_shutdown.append(close)
        yield
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling

    async def _root(self, http: web.Request) -> web.StreamResponse:
        """The page for browsers. For others the hint, which names the model and so needs a key."""
        if "text/html" in http.headers.get("Accept", ""):
            return self._answer(PAGE, http)
        self._core.access.caller(http.headers)
        return await health.hint(self._core, http)

    async def _file(self, http: web.Request) -> web.StreamResponse:
        return self._answer(http.match_info["name"], http)

    def _answer(self, name: str, http: web.Request) -> web.Response:
        if self._assets is None:
            raise RuntimeError("the application has not been started")
        return self._assets.answer(name, http)

    async def _drain(self, http: web.Request) -> web.StreamResponse:
        return await self._order(http, DrainCommand())

    async def _resume(self, http: web.Request) -> web.StreamResponse:
        return await self._order(http, ResumeCommand())

    async def _order(self, http: web.Request, command: DrainCommand | ResumeCommand) -> web.Response:
        """When the supervisor has heard it. Raises ApiError as `frontend.live.control` does."""
        require_admin(http[CALLER], self._core.access.wanted)
        await asyncio.to_thread(order, self._core.args.run_dir, command)
        return json_response(Intake(draining=isinstance(command, DrainCommand)))

    async def _events(self, http: web.Request) -> web.StreamResponse:
        """The stream of one page. Raises ApiError 429 and 503 when too many are open."""
        if self._hub is None:
            raise RuntimeError("the application has not been started")
        if http.method == "HEAD":
            return web.Response(headers=STREAM_HEADERS)
        hub, owner = self._hub, http[CALLER].owner
        viewer = hub.join(owner)
        try:
            response = web.StreamResponse(headers=STREAM_HEADERS)
            await response.prepare(http)
            model, name, keys = self._core.view.model, self._core.args.name, self._core.access.wanted
            hello = frames.Hello(model=model, version=VERSION, frontend=name, admin=owner is None, keys=keys)
            await _write(response, frames.event("hello", hello))
            while not hub.closed and self._still_may(http, owner):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SILENCE_SECONDS):
                        await viewer.wake.wait()
                await _write(response, viewer.taken() or _ALIVE)
            await response.write_eof()
            return response
        finally:
            hub.leave(viewer)

    def _still_may(self, http: web.Request, owner: str | None) -> bool:
        """Whether the page's key sees what it saw: keys are removed and changed while pages are open."""
        try:
            return self._core.access.caller(http.headers).owner == owner
        except ApiError:
            return False


async def _write(response: web.StreamResponse, data: bytes) -> None:
    """Raises ConnectionResetError when the client does not read."""
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            await response.write(data)
    except TimeoutError as error:
        raise ConnectionResetError("the page does not read") from error
