"""A client of /v1/completions for tests: whole or streamed, the answer comes in one shape, so that the two can be compared."""

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.support.cluster import Cluster

SECONDS = 110.0
TOP_LOGPROBS = 5


@dataclass
class Choice:
    """`tokens` are texts of single tokens, `logprobs` theirs, `top` the alternatives of each. `pieces` are the texts of a stream's chunks."""

    text: str = ""
    finish: str | None = None
    stop_reason: str | int | None = None
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[dict[str, float]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    def add(self, choice: dict[str, Any]) -> None:
        self.text += choice["text"]
        self.pieces.append(choice["text"])
        self.finish = choice["finish_reason"]
        self.stop_reason = choice["stop_reason"]
        if logprobs := choice["logprobs"]:
            self.tokens += logprobs["tokens"]
            self.logprobs += logprobs["token_logprobs"]
            self.top += logprobs["top_logprobs"]


@dataclass
class Answer:
    """Choices by index and the usage: `cached` prompt tokens came from the prefix cache."""

    choices: list[Choice]
    prompt_tokens: int
    completion_tokens: int
    cached: int


def open_session(cluster: Cluster, seconds: float = SECONDS) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(cluster.url, timeout=aiohttp.ClientTimeout(total=seconds), connector=aiohttp.TCPConnector(limit=0))


def body_of(cluster: Cluster, prompt: list[int] | list[list[int]], options: dict[str, Any]) -> dict[str, Any]:
    """Greedy with logprobs and past the end token, unless `options` say otherwise."""
    return {"model": cluster.model, "prompt": prompt, "temperature": 0, "logprobs": TOP_LOGPROBS, "ignore_eos": True} | options


async def complete(session: aiohttp.ClientSession, cluster: Cluster, prompt: list[int], **options: Any) -> Answer:
    """The whole answer at once. Fails unless it is a 200."""
    async with session.post("/v1/completions", json=body_of(cluster, prompt, options)) as response:
        answer = await response.json()
        assert response.status == 200, answer
    choices = [Choice() for _ in answer["choices"]]
    for choice in answer["choices"]:
        choices[choice["index"]].add(choice)
    return _answer(choices, answer["usage"])


async def events(
    session: aiohttp.ClientSession, cluster: Cluster, prompt: list[int] | list[list[int]], **options: Any
) -> AsyncGenerator[dict[str, Any], None]:
    """The chunks of a stream as they come, the one with the usage last. Fails on an error in the stream."""
    body = body_of(cluster, prompt, options) | {"stream": True, "stream_options": {"include_usage": True}}
    async with session.post("/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        last = b""
        async for line in response.content:
            last = line.strip() or last
            if line.startswith(b"data: {"):
                event: dict[str, Any] = json.loads(line[6:])
                assert "error" not in event, event
                yield event
        assert last == b"data: [DONE]"


async def stream(session: aiohttp.ClientSession, cluster: Cluster, prompt: list[int], **options: Any) -> Answer:
    """The same as `complete`, put together from a stream."""
    choices = [Choice() for _ in range(options.get("n", 1))]
    usage: dict[str, Any] = {}
    async for event in events(session, cluster, prompt, **options):
        usage = event["usage"] or usage
        for choice in event["choices"]:
            assert choices[choice["index"]].finish is None, "a chunk after the last one"
            choices[choice["index"]].add(choice)
    return _answer(choices, usage)


def _answer(choices: list[Choice], usage: dict[str, Any]) -> Answer:
    assert all(choice.finish in ("stop", "length") for choice in choices)
    return Answer(choices, usage["prompt_tokens"], usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"])
