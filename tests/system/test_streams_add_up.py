"""Random tokens through a whole cluster: the streamed text, the one that is not streamed and the decoded ids are the same, and cut alike."""

import asyncio
import random
from typing import Any

import pytest

from tests.support.asking import ask, complete, stream
from tests.support.cluster import Cluster

SEEDS = 16


@pytest.fixture(params=["chain", "spm"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """A byte-level tokenizer, and one like SentencePiece's."""
    found: Cluster = request.getfixturevalue(request.param)
    return found


async def decoded(cluster: Cluster, ids: list[int]) -> str:
    status, answer = await ask(cluster, "/detokenize", tokens=ids)
    assert status == 200, answer
    text: str = answer["prompt"]
    return text


async def both(cluster: Cluster, body: dict[str, Any]) -> tuple[str, list[int], str]:
    """Text, ids and finish reason; the stream's are the same."""
    whole, events = await asyncio.gather(complete(cluster, **body), stream(cluster, "/v1/completions", **body))
    choice, parts = whole["choices"][0], [event["choices"][0] for event in events]
    assert "".join(part["text"] for part in parts) == choice["text"]
    assert [number for part in parts for number in part["token_ids"]] == choice["token_ids"]
    assert parts[-1]["finish_reason"] == choice["finish_reason"]
    return choice["text"], choice["token_ids"], choice["finish_reason"]


async def one(cluster: Cluster, prompt: list[int], seed: int, include: bool) -> tuple[str, str]:
    """The text of one seed; it has a stop string drawn from it too, wherever tokens end in it."""
    body: dict[str, Any] = {
        "prompt": prompt, "temperature": 100, "seed": seed, "max_tokens": 24, "ignore_eos": True, "skip_special_tokens": False,
        "return_token_ids": True, "include_stop_str_in_output": include,
    }  # fmt: skip
    text, ids, finish = await both(cluster, body)
    before = await decoded(cluster, prompt)
    assert (len(ids), finish, before + text) == (24, "length", await decoded(cluster, prompt + ids))
    draw = random.Random(seed)
    place = draw.randrange(len(text))
    stop = text[place : place + draw.randint(1, 5)]
    cut, some, finish = await both(cluster, body | {"stop": [stop]})
    at = text.index(stop)
    assert (cut, finish) == (text[: at + len(stop) * include], "stop")
    assert some == ids[: len(some)]
    return text, stop


async def test_streamed_whole_and_decoded_are_one_text(cluster: Cluster) -> None:
    _, tokens = await ask(cluster, "/tokenize", prompt="the")
    found = await asyncio.gather(*(one(cluster, tokens["tokens"], seed, bool(seed % 2)) for seed in range(SEEDS)))
    texts = {text for text, _ in found}
    assert len(texts) == SEEDS
    assert any("\ufffd" in text for text in texts)
    assert any(not stop.isascii() for _, stop in found)
