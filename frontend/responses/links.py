"""The way to the other frontends on this one's port: HTTP over a socket in the run directory, for responses that one of them keeps."""

import asyncio
import base64
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import aiohttp
import msgspec
from aiohttp import web

from frontend.access import CALLER, Caller
from frontend.errors import ApiError, ErrorBody
from frontend.keepers import STAY
from frontend.record import RECORD
from frontend.responses.items import Item
from messages.peers import Stay

S = TypeVar("S", bound=msgspec.Struct)

ANSWER_SECONDS = 5.0
ACCEPT_SECONDS = 30.0
"""Until the headers of an answer are here; to what may wait for a slow disk, so that it is not taken for refused and sent again."""
CALLER_HEADER, STAY_HEADER = "X-Pagewire-Caller", "X-Pagewire-Stay"
_PASSED = ("Content-Type", "Retry-After", "Cache-Control", "X-Accel-Buffering")


def socket_path(run_dir: str, frontend: str) -> str:
    """Where this frontend listens for the others."""
    return f"{run_dir}/http-{frontend.removeprefix('frontend')}.sock"


def _packed(value: msgspec.Struct) -> str:
    return base64.b64encode(msgspec.json.encode(value)).decode("ascii")


def _unpacked(header: str, kind: type[S]) -> S:
    return msgspec.json.decode(base64.b64decode(header, validate=True), type=kind)


def read_caller(headers: Mapping[str, str]) -> Caller:
    """Raises ValueError and msgspec.DecodeError for a header that is none of ours."""
    return _unpacked(headers.get(CALLER_HEADER, ""), Caller)


def read_stay(headers: Mapping[str, str]) -> Stay | None:
    """As `read_caller`; None without such a header."""
    return _unpacked(headers[STAY_HEADER], Stay) if STAY_HEADER in headers else None


class Links:
    """`peers`: names of the other frontends. Those that do not `serve` are not asked."""

    def __init__(self, run_dir: str = "", peers: Sequence[str] = (), serves: Callable[[str], bool] = lambda _: True) -> None:
        self.peers = tuple(peers)
        self._run_dir = run_dir
        self._serves = serves
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    async def forward(self, peer: str, http: web.Request, body: bytes | None = None) -> web.StreamResponse:
        """The other frontend's answer to this request, as it comes. Raises ApiError 503 when it does not answer."""
        answer = await self._asked(peer, http.method, http.path_qs, http, body)
        async with answer:
            headers = {name: answer.headers[name] for name in _PASSED if name in answer.headers}
            if not answer.headers.get("Content-Type", "").startswith("text/event-stream"):
                return web.Response(status=answer.status, body=await self._read(answer), headers=headers)
            response = web.StreamResponse(status=answer.status, headers=headers)
            await response.prepare(http)
            try:
                async for data in answer.content.iter_any():
                    await response.write(data)
            except aiohttp.ClientError as error:
                raise ConnectionResetError(f"{peer} has gone") from error
            await response.write_eof()
            return response

    async def conversation(self, peer: str, name: str, http: web.Request) -> list[Item]:
        """What was said up to and with a response that the other frontend keeps. Raises ApiError: what it answers, or 503."""
        answer = await self._asked(peer, "GET", f"/conversations/{name}", http, None)
        async with answer:
            data = await self._read(answer)
        if answer.status != 200:
            error = msgspec.json.decode(data, type=ErrorBody).error
            raise ApiError(answer.status, error.code, error.message, error.param)
        return msgspec.json.decode(data, type=list[Item])

    async def _asked(self, peer: str, method: str, path: str, http: web.Request, body: bytes | None) -> aiohttp.ClientResponse:
        if not self._serves(peer):
            raise _silent(peer)
        headers = {CALLER_HEADER: _packed(http[CALLER]), "X-Request-Id": http[RECORD].request_id, **http[RECORD].trace}
        if STAY in http:
            headers[STAY_HEADER] = _packed(http[STAY])
        try:
            async with asyncio.timeout(ANSWER_SECONDS if method == "GET" else ACCEPT_SECONDS):
                return await self._session(peer).request(method, f"http://{peer}{path}", data=body, headers=headers)
        except (TimeoutError, aiohttp.ClientError) as error:
            raise _silent(peer) from error

    async def _read(self, answer: aiohttp.ClientResponse) -> bytes:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await answer.read()
        except (TimeoutError, aiohttp.ClientError) as error:
            raise _silent(str(answer.url.host)) from error

    def _session(self, peer: str) -> aiohttp.ClientSession:
        if peer not in self._sessions:
            connector = aiohttp.UnixConnector(path=socket_path(self._run_dir, peer), limit=0)
            self._sessions[peer] = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(), auto_decompress=False)
        return self._sessions[peer]

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()


def _silent(peer: str) -> ApiError:
    return ApiError(503, "not_ready", f"The response is kept by {peer}, which does not answer now; try again soon.", retry_after=1.0)
