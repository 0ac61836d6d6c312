"""A Struct as an HTTP response."""

from collections.abc import Mapping

import msgspec
from aiohttp import web


def json_response(body: msgspec.Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """`body` as JSON, whole."""
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json", headers=headers)
