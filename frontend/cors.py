"""Which web pages may read answers in a browser (https://fetch.spec.whatwg.org/#http-cors-protocol). Without origins: none."""

import re

from aiohttp import web

ANY = "*"
METHODS = "GET, POST, DELETE"
_RATES = (f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset"))
EXPOSED = ", ".join(("X-Request-Id", "Retry-After", *_RATES))
MAX_AGE_SECONDS = 600
_NAMES = re.compile(r"[A-Za-z0-9-]{1,64}( *, *[A-Za-z0-9-]{1,64}){0,63}")
_ASKED = "Access-Control-Request-Method"


class Cors:
    """`origins` such as https://chat.example, compared as they are, or ANY for all of them. Cookies play no part here, keys do."""

    def __init__(self, origins: tuple[str, ...] = ()) -> None:
        self._origins = frozenset(origins)

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a browser that asks what it may send; None for every other request. It needs no key: browsers send none."""
        if request.method != "OPTIONS" or _ASKED not in request.headers or not self._allows(request):
            return None
        headers = {"Access-Control-Allow-Methods": METHODS, "Access-Control-Max-Age": str(MAX_AGE_SECONDS)}
        asked = request.headers.get("Access-Control-Request-Headers", "")
        if _NAMES.fullmatch(asked):
            headers["Access-Control-Allow-Headers"] = asked
        return web.Response(status=204, headers=headers)

    def mark(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Before the headers of any response go out."""
        if not self._origins:
            return
        response.headers["Vary"] = "Origin"
        if self._allows(request):
            response.headers["Access-Control-Allow-Origin"] = ANY if ANY in self._origins else request.headers["Origin"]
            response.headers["Access-Control-Expose-Headers"] = EXPOSED

    def _allows(self, request: web.BaseRequest) -> bool:
        origin = request.headers.get("Origin")
        return origin is not None and (ANY in self._origins or origin in self._origins)
