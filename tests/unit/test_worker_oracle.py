"""Logits against transformers (in a subprocess with a clean path): every family, every rope kind, prefill and decode."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.engines import every_logprobs, last_logprobs, make_engine, poison, tokens_of
from tests.support.plans import Chunk, Planner, Row

ORACLES = Path(__file__).resolve().parents[1] / "oracles"
CASES = [
    "llama", "llama-biases-tied", "llama-mha", "llama-linear", "llama-llama3", "llama-yarn", "llama-dynamic",
    "qwen2", "qwen2-window", "qwen3", "mistral-window",
]  # fmt: skip


def ask(script: str, *arguments: str, stdin: str = "") -> str:
    command = [sys.executable, "-P", str(ORACLES / script), *arguments]
    environment = {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "HOME": "/nonexistent"}
    done = subprocess.run(command, input=stdin, env=environment, cwd="/", capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def log_softmax(x: NDArray[np.float32]) -> NDArray[np.float64]:
    y = x.astype(np.float64)
    y -= y.max(-1, keepdims=True)
    result: NDArray[np.float64] = y - np.log(np.exp(y).sum(-1, keepdims=True))
    return result


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    ask("families.py", str(folder))
    return folder


@pytest.mark.parametrize("case", CASES)
def test_family(families: Path, case: str) -> None:
    found = np.load(families / f"{case}.npz")
    ids, expected = found["ids"].tolist(), log_softmax(found["logits"])
    engine = make_engine(families / case, kv_tokens=512)
    poison(engine)
    chunked = last_logprobs(engine, ids, [17, 100, 101, len(ids)], blocks=list(range(25, 6, -1)))
    np.testing.assert_allclose(chunked, expected[-1], atol=1e-4)
    decoded = every_logprobs(engine, ids, 250)
    np.testing.assert_allclose(decoded, expected[249:], atol=1e-4)


def test_random_fixture(models: Path, tmp_path: Path) -> None:
    """2,000 tokens, in chunks, and the last forty by decode."""
    path = models / "rand-byte"
    ask("logits.py", str(path), str(tmp_path / "out.npy"), "2000")
    expected = log_softmax(np.load(tmp_path / "out.npy"))
    engine = make_engine(path)
    ids = [(7 * i + 3) % engine.slots.vocab for i in range(2000)]
    whole = last_logprobs(engine, ids, [500, 1000, 1500, 2000])
    np.testing.assert_allclose(whole, expected[-1], atol=1e-4)
    engine = make_engine(path, max_step_tokens=2000)
    tail = every_logprobs(engine, ids, 1960)
    np.testing.assert_allclose(tail, expected[1959:], atol=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_smollm2_greedy(smollm2: Path) -> None:
    """64 greedy tokens of two rows at once, then one of them alone, equal transformers' on the same GGUF file."""
    prompts = ["The capital of France is", "def fibonacci(n):\n"]
    answers = json.loads(ask("greedy_ids.py", str(smollm2), "64", stdin=json.dumps(prompts)))
    engine = make_engine(smollm2)
    rows = [Row(slot=number, prompt=answer["prompt"], blocks=range(number * 8, number * 8 + 8)) for number, answer in enumerate(answers)]
    planner = Planner()
    streams = [tokens_of(engine.run(planner.start(row))) for row in rows]
    for step in range(63):
        got = tokens_of(engine.run(planner.plan(decode=[0, 1] if step == 0 else None)))
        for stream, token in zip(streams, got, strict=True):
            stream.append(token)
    assert streams == [answer["ids"] for answer in answers]
    alone = tokens_of(engine.run(planner.plan(release=[0, 1], admit=[rows[1]], chunks=[Chunk(1, 0, rows[1].prompt, True)])))
    for _ in range(31):
        alone += tokens_of(engine.run(planner.plan(decode=[1])))
    assert alone == answers[1]["ids"][:32]
