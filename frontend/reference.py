"""GET /openapi.json and /docs: the description of the API, for programs and for people."""

import asyncio
import functools

import msgspec
from aiohttp import web

from frontend import docs_page
from frontend.core import Core
from frontend.openapi import document


async def openapi(core: Core, http: web.Request) -> web.Response:
    return web.Response(body=await asyncio.to_thread(_document), content_type="application/json")


async def docs(core: Core, http: web.Request) -> web.Response:
    text = await asyncio.to_thread(_page, core.view.model)
    return web.Response(text=text, content_type="text/html", headers=docs_page.HEADERS)


@functools.cache
def _document() -> bytes:
    return msgspec.json.encode(document())


@functools.cache
def _page(model: str) -> str:
    return docs_page.page(document(), model)
