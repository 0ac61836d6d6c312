"""Logits of whole models against transformers, through the worker's own loader, engine and cache: chunked prompts, mixed steps, decode.

Llama, Qwen2, Qwen3 and Mistral (with its window) with random weights; on a GPU of published widths and on the resident engine.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from messages.plan import StepPlan
from messages.result import StepResult
from tests.support.devices import GPU
from tests.support.engines import SilentReporter, full_logprobs, make_engine, poison, tokens_of, worker_args
from tests.support.plans import Chunk, Planner, Row
from tests.support.resident import Playing
from transport.columns import view_i32
from worker.load import load_model
from worker.memory import allocate
from worker.resident.engine import ResidentEngine

ORACLE = Path(__file__).resolve().parents[1] / "oracles" / "shapes.py"
FAMILIES = ["llama", "qwen2", "qwen3", "mistral"]
DTYPES = ["float32", "bfloat16"] if GPU else ["float32"]
VOCAB, BLOCKS, DECODES = 8009, 240, 20
PROMPTS = [[(131 * position + 17 * row) % 7919 + 3 for position in range(length)] for row, length in enumerate((33, 2500, 700))]
CUTS = [1000, 1017, 2500]
"""Where the chunks of the long prompt end."""
EXACT = 5e-6
"""Relative error in the 2-norm that float32 may have."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
Ids = list[int]
Logits = NDArray[np.float64]


def oracle(*arguments: str, stdin: bytes = b"") -> None:
    environment = {"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "2" if GPU else "1", "HOME": "/nonexistent"}
    command = [sys.executable, "-P", str(ORACLE), *arguments]
    done = subprocess.run(command, input=stdin, env=environment, cwd="/", capture_output=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def plans() -> list[StepPlan]:
    """The short row decodes while the long one comes in chunks and the third at once; then all decode together. All ask for every logprob."""
    blocks = [range(4), range(239, 79, -1), range(4, 50)]
    rows = [Row(slot=slot, prompt=prompt, blocks=blocks[slot], logprobs=VOCAB) for slot, prompt in enumerate(PROMPTS)]
    planner, start = Planner(), 0
    found = [planner.start(rows[0]), planner.plan(decode=[0])]
    for number, cut in enumerate(CUTS):
        chunk = Chunk(1, start, rows[1].prompt[start:cut], cut == CUTS[-1])
        found.append(planner.plan(admit=[] if number else [rows[1]], chunks=[chunk], decode=[0]))
        start = cut
    found.append(planner.plan(admit=[rows[2]], chunks=[Chunk(2, 0, rows[2].prompt, True)], decode=[0, 1]))
    return [*found, *(planner.plan(decode=None if step else [0, 1, 2]) for step in range(DECODES))]


def run_on_cpu(model: Path, dtype: str) -> list[StepResult]:
    engine = make_engine(model, kv_tokens=BLOCKS * 16, max_step_tokens=2000, dtype=dtype)
    poison(engine)
    return [engine.run(plan) for plan in plans()]


def run_on_gpu(model: Path, dtype: str) -> list[StepResult]:
    torch.cuda.set_stream(torch.cuda.Stream())
    args = worker_args(model, device="cuda", dtype=dtype, max_step_tokens=2000)
    found = load_model(args, SilentReporter())
    torch.cuda.synchronize()
    cache = allocate(found.decoder.config, found.kv_dtype, BLOCKS, 16, found.device)
    cache.k.fill_(torch.nan)
    cache.v.fill_(torch.nan)
    playing = Playing(ResidentEngine(found.decoder, cache, found.kernels, 8, found.positions // 16, 2000))
    try:
        return playing.play(plans())
    finally:
        playing.engine.close()


def read(results: Sequence[StepResult]) -> tuple[list[Ids], list[Logits]]:
    """Per row its tokens after the prompt and log-softmax before each of them."""
    tokens: list[Ids] = [[] for _ in PROMPTS]
    logits: list[list[NDArray[np.float32]]] = [[] for _ in PROMPTS]
    for result in results:
        slots = view_i32(result.slot).tolist()
        if slots:
            for slot, token, row in zip(slots, tokens_of(result), full_logprobs(result, VOCAB), strict=True):
                tokens[slot].append(token)
                logits[slot].append(row)
    return tokens, [np.stack(rows).astype(np.float64) for rows in logits]


def error(found: Logits, exact: Logits) -> tuple[float, float]:
    """Relative error in the 2-norm and largest error, of logits of which each row is known up to a constant."""
    difference = (found - found.mean(-1, keepdims=True)) - (exact - exact.mean(-1, keepdims=True))
    return float(np.linalg.norm(difference) / np.linalg.norm(exact - exact.mean(-1, keepdims=True))), float(np.abs(difference).max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_transformers(tmp_path: Path, family: str, dtype: str) -> None:
    """float32: to rounding. bfloat16: no farther from the exact logits than transformers' own in that type."""
    oracle("make", str(tmp_path), family, "large" if GPU else "small")
    tokens, logits = read((run_on_gpu if GPU else run_on_cpu)(tmp_path, dtype))
    sequences = [(prompt + more[:-1], len(prompt) - 1) for prompt, more in zip(PROMPTS, tokens, strict=True)]
    oracle("run", str(tmp_path), stdin=msgspec.json.encode({dtype: sequences}))
    theirs = np.load(tmp_path / f"{dtype}.npz")
    for row, found in enumerate(logits):
        exact, own = theirs[f"exact_{row}"].astype(np.float64), theirs[f"own_{row}"].astype(np.float64)
        assert found.shape == exact.shape
        assert np.isfinite(found).all()
        (ours, most), (peer, peer_most) = error(found, exact), error(own, exact)
        print(f"{family} {dtype} {len(PROMPTS[row])} + {len(found)} tokens: relative error {ours:.2e}, largest {most:.2e}; ", end="")
        print(f"transformers {peer:.2e}, {peer_most:.2e}", flush=True)
        assert ours <= (EXACT if dtype == "float32" else 1.25 * peer)
