"""Embeddings through the whole cluster: equal to transformers' last hidden states, pooled, whatever is cut, cached or at work beside them."""

import asyncio
import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from numpy.typing import NDArray

from tests.support.asking import ask
from tests.support.cluster import Cluster, running_cluster
from tests.support.figures import idle_figures

ORACLE = Path(__file__).resolve().parents[1] / "oracles" / "embeddings.py"
TOKENS = 300
IDS = [(7 * number + 3) % 290 for number in range(TOKENS)]
Vector = NDArray[np.float64]


@pytest.fixture(scope="module")
def rand(models: Path) -> Iterator[Cluster]:
    """Prompts in several chunks, and a pool that holds one of the longest at a time."""
    options = ["--chunk-tokens", "64", "--max-context", "320", "--kv-tokens", "512", "--dtype", "float32", "--log-level", "debug"]
    with running_cluster(models / "rand-byte", "--threads", "1", *options) as running:
        yield running


@pytest.fixture(scope="module")
def states(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Vector:
    """[TOKENS, hidden] by transformers."""
    out = tmp_path_factory.mktemp("states") / "out.npy"
    environment = {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HOME": "/nonexistent"}
    command = [sys.executable, "-P", str(ORACLE), str(models / "rand-byte"), str(out), str(TOKENS)]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: Vector = np.load(out).astype(np.float64)
    return found


def pooled(states: Vector, length: int, pooling: str) -> Vector:
    vector: Vector = states[:length].mean(0) if pooling == "mean" else states[length - 1]
    return vector / np.linalg.norm(vector)


async def embed(cluster: Cluster, prompts: Any, **fields: Any) -> list[Vector]:
    status, answer = await ask(cluster, "/v1/embeddings", input=prompts, **fields)
    assert status == 200, answer
    assert [entry["index"] for entry in answer["data"]] == list(range(len(answer["data"])))
    return [np.array(entry["embedding"]) for entry in answer["data"]]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("pooling", ["mean", "last"])
async def test_equal_to_transformers(rand: Cluster, states: Vector, pooling: str) -> None:
    """One token, and lengths about those of chunks; all at once, twice, beside completions of the same prompts."""
    lengths = [1, 2, 63, 64, 65, 128, 200, TOKENS]
    prompts = [IDS[:length] for length in lengths]
    others = [ask(rand, "/v1/completions", prompt=prompt, max_tokens=10, temperature=0, ignore_eos=True) for prompt in prompts]
    first, again, *answers = await asyncio.gather(embed(rand, prompts, pooling=pooling), embed(rand, prompts, pooling=pooling), *others)
    assert {status for status, _ in answers} == {200}
    for vectors in (first, again, await embed(rand, prompts, pooling=pooling)):
        for length, vector in zip(lengths, vectors, strict=True):
            np.testing.assert_allclose(vector, pooled(states, length, pooling), atol=1e-5)
    await idle_figures(rand)


async def test_a_prompt_in_pieces_and_in_company_is_the_same(rand: Cluster) -> None:
    """Beside completions of the same prompts, which are cached then."""
    prompts = [IDS[:length] for length in (1, 64, 130, 200)]
    for pooling in ("mean", "last"):
        alone = [(await embed(rand, prompt, pooling=pooling))[0] for prompt in prompts]
        others = [ask(rand, "/v1/completions", prompt=prompt, max_tokens=10, temperature=0, ignore_eos=True) for prompt in prompts]
        together, *_ = await asyncio.gather(embed(rand, prompts, pooling=pooling), *others)
        np.testing.assert_allclose(together, alone, atol=1e-5)
        assert np.linalg.norm(alone, axis=1) == pytest.approx([1.0] * 4, abs=1e-6)
    await idle_figures(rand)


async def test_forms_of_input(rand: Cluster) -> None:
    (text,) = await embed(rand, "Hello world")
    _, tokens = await ask(rand, "/tokenize", prompt="Hello world")
    for same in (["Hello world"], tokens["tokens"], [tokens["tokens"]]):
        np.testing.assert_array_equal((await embed(rand, same))[0], text)
    status, answer = await ask(rand, "/v1/embeddings", input=["Hello world", "a"], encoding_format="base64")
    assert status == 200
    assert answer["usage"] == {"prompt_tokens": len(tokens["tokens"]) + 2, "total_tokens": len(tokens["tokens"]) + 2}
    vector = np.frombuffer(base64.b64decode(answer["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(vector, text, atol=1e-7)
    np.testing.assert_array_equal(
        (await embed(rand, [IDS], truncate_prompt_tokens=5, pooling="last"))[0], (await embed(rand, [IDS[-5:]], pooling="last"))[0]
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": 5}, "input"),
        ({"input": [1, "a"]}, "input"),
        ({"input": [312]}, "input"),
        ({"input": [5] * 320}, "input"),
        ({"input": "a" * 400}, "input"),
        ({"input": "a", "dimensions": 5}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "temperature": 1}, "temperature"),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
    ids=str,
)
async def test_refusals(rand: Cluster, fields: dict[str, Any], param: str) -> None:
    status, answer = await ask(rand, "/v1/embeddings", **fields)
    assert (status, answer["error"]["param"]) == (400, param), answer
    status, answer = await ask(rand, "/v1/embeddings", input="a", model="nope")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_the_openai_client(rand: Cluster) -> None:
    """It asks for base64 by itself and decodes it."""
    _, tokens = await ask(rand, "/tokenize", prompt="Hello world")
    same: list[Any] = [["Hello world", "a"], "Hello world", tokens["tokens"], [tokens["tokens"], IDS[:5]]]
    expected = (await embed(rand, "Hello world"))[0]
    async with openai.AsyncOpenAI(base_url=f"{rand.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        for given in same:
            answer = await client.embeddings.create(model=rand.model, input=given)
            np.testing.assert_allclose(answer.data[0].embedding, expected, atol=1e-6)
            assert len(answer.data) == (2 if isinstance(given[0], list) or given == same[0] else 1)
        answer = await client.embeddings.create(model=rand.model, input="Hello world", encoding_format="float")
        np.testing.assert_allclose(answer.data[0].embedding, expected, atol=1e-6)
        with pytest.raises(openai.BadRequestError) as refused:
            await client.embeddings.create(model=rand.model, input="Hello world", dimensions=8)
        assert refused.value.param == "dimensions"
