"""The default model through the whole cluster, on a CPU and on a GPU: greedy text equals transformers' (float32, same GGUF), alone and in company."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.oracles.prompts import PROMPTS
from tests.support.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
GOLDEN: list[dict[str, Any]] = json.loads((ROOT / "tests" / "golden" / "smollm2_greedy.json").read_text())
MAX_TOKENS = 64
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def cluster(smol: Cluster) -> Cluster:
    return smol


async def complete(session: aiohttp.ClientSession, cluster: Cluster, prompt: str) -> dict[str, Any]:
    body = {"model": cluster.model, "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0}
    async with session.post(f"{cluster.url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


def check(answer: dict[str, Any], golden: dict[str, Any]) -> None:
    ended = len(golden["ids"]) < MAX_TOKENS
    assert answer["choices"][0]["text"] == golden["text"]
    assert answer["choices"][0]["finish_reason"] == ("stop" if ended else "length")
    assert answer["usage"]["completion_tokens"] == len(golden["ids"])
    assert answer["usage"]["prompt_tokens"] == golden["prompt"]


def test_the_golden_file_is_no_coin_toss() -> None:
    assert len(GOLDEN) == len(PROMPTS) == 20
    assert min(row["gap"] for row in GOLDEN) > 1e-3  # float32 reorderings differ by about 1e-4


async def test_alone(cluster: Cluster) -> None:
    async with aiohttp.ClientSession() as session:
        for prompt, golden in zip(PROMPTS[:4], GOLDEN[:4], strict=True):
            check(await complete(session, cluster, prompt), golden)


@pytest.mark.slow
async def test_all_alone(cluster: Cluster) -> None:
    async with aiohttp.ClientSession() as session:
        for prompt, golden in zip(PROMPTS, GOLDEN, strict=True):
            check(await complete(session, cluster, prompt), golden)


async def test_sixteen_at_once(cluster: Cluster) -> None:
    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(complete(session, cluster, prompt) for prompt in PROMPTS[4:]))
    for answer, golden in zip(answers, GOLDEN[4:], strict=True):
        check(answer, golden)


async def test_the_capital_of_france(cluster: Cluster) -> None:
    body = {"model": cluster.model, "messages": [{"role": "user", "content": "What is the capital of France?"}], "temperature": 0, "max_tokens": 20}
    async with aiohttp.ClientSession() as session, session.post(f"{cluster.url}/v1/chat/completions", json=body) as response:
        answer = await response.json()
    assert answer["choices"][0]["message"]["content"].startswith("The capital of France is Paris.")


@pytest.mark.slow
def test_the_golden_file_is_what_transformers_gives(smollm2: Path, tmp_path: Path) -> None:
    oracle = [sys.executable, "-P", str(ROOT / "tests" / "oracles" / "greedy.py"), str(smollm2), str(MAX_TOKENS)]
    done = subprocess.run(oracle, input=json.dumps(PROMPTS), capture_output=True, text=True, cwd=tmp_path, timeout=590)
    assert done.returncode == 0, done.stderr
    assert [row["ids"] for row in json.loads(done.stdout)] == [row["ids"] for row in GOLDEN]
