"""The files of the page: read once, sent as they are. They hold nothing about the cluster, so they need no API key."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from frontend.errors import ApiError

FOLDER = Path(__file__).resolve().parent.parent / "static"
PAGE = "index.html"
_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class Asset:
    body: bytes
    kind: str
    tag: str


class Assets:
    """All files of the folder by name."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {path.name: _read(path) for path in sorted(folder.iterdir()) if path.suffix in _KINDS}

    @property
    def names(self) -> list[str]:
        return list(self._files)

    def answer(self, name: str, http: web.Request) -> web.Response:
        """The file, or 304 when the client has it. Raises ApiError 404 for any other name."""
        found = self._files.get(name)
        if found is None:
            raise ApiError(404, "not_found", f"There is no file {name[:64]!r} of the page.")
        headers = {**HEADERS, "ETag": found.tag}
        if http.headers.get("If-None-Match") == found.tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=found.body, content_type=found.kind, charset="utf-8", headers=headers)


def _read(path: Path) -> Asset:
    body = path.read_bytes()
    return Asset(body, _KINDS[path.suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"')
