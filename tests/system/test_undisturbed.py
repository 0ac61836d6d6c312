"""Every kind of bad or extreme request gets its right answer while ten streams go on undisturbed."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.cluster import Cluster, running_cluster

CONTEXT = 256
STREAM_TOKENS = 200


@pytest.fixture(scope="module")
def cluster(models: Path) -> Iterator[Cluster]:
    with running_cluster(models / "dice-byte", "--max-context", str(CONTEXT), "--max-slots", "16") as running:
        yield running


@pytest.fixture
async def session(cluster: Cluster) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(cluster.url, timeout=aiohttp.ClientTimeout(total=90)) as open_session:
        yield open_session


async def stream(session: aiohttp.ClientSession, cluster: Cluster, seed: int) -> str:
    body = {"model": cluster.model, "prompt": "A", "max_tokens": STREAM_TOKENS, "seed": seed, "ignore_eos": True, "stream": True}
    text = ""
    async with session.post("/v1/completions", json=body) as response:
        assert response.status == 200
        async for line in response.content:
            if line.startswith(b"data: {"):
                choice = json.loads(line[6:])["choices"][0]
                text += choice["text"]
                finish = choice["finish_reason"]
        assert finish == "length"
    return text


async def post(session: aiohttp.ClientSession, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
    async with session.post(path, data=data, headers={"Content-Type": "application/json"}) as response:
        return response.status, await response.json()


def bad_requests(model: str) -> list[tuple[str, Any, int]]:
    ask = {"model": model, "prompt": "A", "max_tokens": 1}
    return [
        ("over-long prompt", ask | {"prompt": "a" * 600}, 400),
        ("exactly the context", ask | {"prompt": "a" * (CONTEXT - 1)}, 400),
        ("very long prompt", ask | {"prompt": "a" * 5_000_000}, 400),
        ("no token", ask | {"prompt": "", "add_special_tokens": False}, 400),
        ("no prompt", {"model": model}, 400),
        ("null prompt", ask | {"prompt": None}, 400),
        ("empty list", ask | {"prompt": []}, 400),
        ("list of an empty list", ask | {"prompt": [[]]}, 400),
        ("token over the vocabulary", ask | {"prompt": [10**6]}, 400),
        ("token = vocabulary", ask | {"prompt": [312]}, 400),
        ("negative token", ask | {"prompt": [-1]}, 400),
        ("malformed", b"{:", 400),
        ("empty body", b"", 400),
        ("a list", b"[]", 400),
        ("deep", b"[" * 10_000, 400),
        ("NaN", b'{"model": "x", "prompt": "A", "temperature": NaN}', 400),
        ("surrogate", b'{"model": "' + model.encode() + b'", "prompt": "\\ud800"}', 400),
        ("max_tokens 0", ask | {"max_tokens": 0}, 400),
        ("max_tokens -1", ask | {"max_tokens": -1}, 400),
        ("max_tokens a fraction", ask | {"max_tokens": 1.5}, 400),
        ("unknown field", ask | {"nonsense": True}, 400),
        ("unknown model", ask | {"model": "nope"}, 404),
    ]


async def test_ten_streams_go_on(cluster: Cluster, session: aiohttp.ClientSession) -> None:
    alone = await stream(session, cluster, 0)
    streams = [asyncio.create_task(stream(session, cluster, seed)) for seed in range(10)]
    for name, body, status in bad_requests(cluster.model):
        got, answer = await post(session, "/v1/completions", body)
        assert got == status, (name, got, answer)
        assert set(answer["error"]) >= {"message", "type", "param", "code"}, name
    status, answer = await post(session, "/v1/completions", {"model": cluster.model, "prompt": ""})
    assert (status, answer["usage"]["prompt_tokens"]) == (200, 1)
    status, answer = await post(
        session, "/v1/chat/completions", {"model": cluster.model, "messages": [{"role": "user", "content": ""}], "max_tokens": 1}
    )
    assert status == 200
    for huge in (2_000_000, 10**30):
        status, answer = await post(session, "/v1/completions", {"model": cluster.model, "prompt": "A", "max_tokens": huge, "ignore_eos": True})
        assert (status, answer["choices"][0]["finish_reason"], answer["usage"]["total_tokens"]) == (200, "length", CONTEXT)
    texts = await asyncio.gather(*streams)
    assert texts[0] == alone
    assert all(len(text) == STREAM_TOKENS for text in texts)
    assert len(set(texts)) == 10


async def test_a_chat_to_the_context_limit(cluster: Cluster, session: aiohttp.ClientSession) -> None:
    body: dict[str, Any] = {"model": cluster.model, "messages": [], "ignore_eos": True, "max_tokens": 100, "seed": 1}
    for _ in range(20):
        body["messages"].append({"role": "user", "content": "A"})
        status, answer = await post(session, "/v1/chat/completions", body)
        if status == 400:
            break
        body["messages"].append(answer["choices"][0]["message"])
        assert answer["usage"]["total_tokens"] <= CONTEXT
    assert answer["error"]["code"] == "context_length_exceeded"
