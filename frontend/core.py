"""What every handler needs, in one value."""

import asyncio
from dataclasses import dataclass, field

from aiohttp import HttpVersion11, web

from frontend.access import Access
from frontend.admitted import Admitted
from frontend.args import FrontendArgs
from frontend.cluster import ClusterView
from frontend.compression import IDENTITY, content_encoding, inflate
from frontend.cors import Cors
from frontend.dispatcher import Dispatcher
from frontend.errors import ApiError, invalid, too_large
from frontend.keepers import Keepers
from frontend.metrics import Metrics
from frontend.peers import Peers
from frontend.record import Watcher
from frontend.register import Register
from frontend.responses.desk import Desk

LONG_BODY_BYTES = 1 << 20


@dataclass(frozen=True)
class Core:
    args: FrontendArgs
    view: ClusterView
    metrics: Metrics
    dispatcher: Dispatcher
    register: Register = field(default_factory=Register)
    peers: Peers = field(default_factory=lambda: Peers("", {}))
    access: Access = field(default_factory=Access)
    cors: Cors = field(default_factory=Cors)
    keepers: Keepers = field(default_factory=Keepers)
    watchers: tuple[Watcher, ...] = ()
    admitted: Admitted = field(default_factory=Admitted)
    responses: Desk = field(default_factory=Desk)

    def check_model(self, name: str | None) -> None:
        """A request without a model gets the served one. Raises ApiError 404 for any other name."""
        if name is not None and name not in self.view.models:
            raise ApiError(404, "model_not_found", f"The model {name[:128]!r} does not exist; this server has {self.view.model!r}.", "model")

    def timeout(self, asked: float | None) -> float | None:
        """Seconds that a request may take which has asked for so many; None: as long as it likes. Raises ApiError 400 above the server's maximum."""
        most = self.args.max_timeout
        if asked is not None and most is not None and asked > most:
            raise invalid(f"timeout must not be above {most:g} s here.", "timeout")
        return asked or self.args.default_timeout or most


def check_head(request: web.Request, limit: int) -> str:
    """The Content-Encoding of a body that may be read. Raises ApiError: 413 above `limit` bytes, 415 and 400 for encodings that are not decoded.

    HTTP/1.0 has no transfer codings: such a request is refused and its connection closed (RFC 9112, 6.1).
    """
    encoding = content_encoding(request.headers.getall("Content-Encoding", []))
    transfer = ", ".join(request.headers.getall("Transfer-Encoding", [])).strip().lower()
    if transfer not in ("", "chunked"):
        raise invalid(f"Transfer-Encoding {transfer[:64]!r} is not supported; use chunked or none.", code="unsupported_encoding")
    if transfer and request.version < HttpVersion11:
        request.protocol.close()
        raise invalid("HTTP/1.0 has no Transfer-Encoding.", code="invalid_http")
    length = request.content_length
    if length is not None and length > limit:
        raise too_large(limit)
    return encoding


async def read_body(core: Core, request: web.Request) -> bytes:
    """The whole body, decoded. Raises ApiError: what `check_head` does, 413 for a body that turns out to be too long, as sent or as decoded, 408 when
    the client sends it too slowly and 400 for one that does not decode."""
    limit, seconds = core.args.body_limit, core.args.body_seconds
    encoding = check_head(request, limit)
    try:
        async with asyncio.timeout(seconds):
            body = await request.read()
    except TimeoutError as error:
        raise ApiError(408, "timeout", f"The request body did not arrive within {seconds:g} s.") from error
    except web.RequestPayloadError as error:
        raise invalid("The request body is not valid HTTP.", code="invalid_http") from error
    if len(body) > LONG_BODY_BYTES:
        await asyncio.sleep(0)  # everybody's streams have waited for the copy, and are about to wait for the decoding
    return body if encoding == IDENTITY else await asyncio.to_thread(inflate, body, encoding, limit)
