"""Logprobs of the `histo` fixture through the whole cluster equal the closed form: any stale, missing or foreign KV entry would show."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.fixtures.make_fixtures import forward
from tests.support.cluster import Cluster, running_cluster

BYTE_A = 64  # the byte-level tokenizer's id of "a"
BOS = 292


@pytest.fixture(scope="module", params=[("16", "16"), ("64", "48"), ("16", "512")], ids=lambda p: f"block{p[0]}-chunk{p[1]}")
def cluster(models: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    block, chunk = request.param
    options = ["--block-size", block, "--chunk-tokens", chunk, "--max-slots", "3", "--kv-tokens", "2048"]
    with running_cluster(models / "histo-byte", *options) as running:
        yield running


def expected(weights: dict[str, Any], ids: list[int]) -> Any:
    logits = forward(weights, np.array(ids))[-1].astype(np.float64)
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


async def check(session: aiohttp.ClientSession, cluster: Cluster, weights: dict[str, Any], prompt: list[int], max_tokens: int) -> None:
    body = {"model": cluster.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logprobs": 5, "ignore_eos": True}
    async with session.post(f"{cluster.url}/v1/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
    logprobs = answer["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == max_tokens
    ids = list(prompt)
    for chosen in logprobs["token_logprobs"]:
        reference = expected(weights, ids)
        token = int(reference.argmax())
        assert chosen == pytest.approx(reference[token], abs=1e-3)
        ids.append(token)


@pytest.mark.timeout(180)
async def test_logprobs_are_the_closed_form(cluster: Cluster, models: Path) -> None:
    weights = load_file(models / "histo-byte" / "model.safetensors")
    random = np.random.default_rng(7)
    lengths = [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 200]
    async with aiohttp.ClientSession() as session:
        jobs = []
        for number, length in enumerate(lengths):  # every request has its own few symbols: a foreign entry would lift a logit that must be 0
            symbols = BYTE_A + (number % 8) * 3 + random.integers(0, 3, size=length)
            jobs.append(check(session, cluster, weights, [BOS, *symbols.tolist()][:length], 6))
        await asyncio.gather(*jobs)
