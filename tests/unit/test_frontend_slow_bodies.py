"""A body that comes too slowly: 408 in time, however it trickles, and nobody else waits for it."""

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from frontend.service import make_app
from tests.unit.test_frontend_service import make_core

HEADS = {
    "by length": b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
    "in chunks": b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
}


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    core = make_core()
    running = TestServer(make_app(dataclasses.replace(core, args=msgspec.structs.replace(core.args, body_seconds=0.3))))
    async with running:
        yield running


async def trickle(writer: asyncio.StreamWriter, piece: bytes) -> None:
    while True:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("head", sorted(HEADS))
@pytest.mark.parametrize("trickling", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings", "/tokenize"])
async def test_408(server: TestServer, path: str, head: str, trickling: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    began = time.monotonic()
    writer.write(HEADS[head] % path.encode())
    sending = asyncio.create_task(trickle(writer, b" " if head == "by length" else b"1\r\n \r\n")) if trickling else None
    async with TestClient(server) as client, client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "A"}]}) as other:
        assert other.status == 200
    answer = (await reader.readuntil(b"}}")).decode()
    assert time.monotonic() - began < 30
    if sending is not None:
        sending.cancel()
    writer.close()
    first, _, body = answer.partition("\r\n")[0], *answer.partition("\r\n\r\n")[1:]
    error = json.loads(body)["error"]
    assert first == "HTTP/1.1 408 Request Timeout"
    assert (set(error), error["code"], error["type"]) == ({"message", "type", "param", "code"}, "timeout", "invalid_request_error")
