"""A whole worker on the Triton kernels gives the tokens and logprobs of the reference kernels: chunked prompts, mixed steps, decode."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kernels.triton_set import Triton
from tests.support.devices import GPU
from tests.support.engines import every_logprobs, last_logprobs, make_engine, poison, tokens_of
from tests.support.plans import Chunk, Planner, Row
from worker.step import Engine

IDS = [(7 * i + 3) % 250 for i in range(400 if GPU else 14)]
ENDS = [5, 12, len(IDS)]


def triton_engine(model: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Engine:
    """On the GPU, or in the interpreter with unpacked weights on the CPU."""
    if GPU:
        return make_engine(model, device="cuda", dtype="float32", **changes)
    monkeypatch.setattr("worker.load.kernels_for", lambda device, deterministic: Triton)
    monkeypatch.setattr("kernels.reference.linear._can_pack", lambda weight: False)
    monkeypatch.setattr("worker.weights.FAST_ROWS", 1)
    return make_engine(model, **changes)


@pytest.mark.skipif(not GPU, reason="takes long in the interpreter")
def test_logprobs_equal_the_reference(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models / "rand-byte"
    reference = make_engine(model, kv_tokens=512)
    chunked, decoded = last_logprobs(reference, IDS, ENDS), every_logprobs(reference, IDS, len(IDS) - 1)
    engine = triton_engine(model, monkeypatch, kv_tokens=512)
    poison(engine)
    np.testing.assert_allclose(last_logprobs(engine, IDS, ENDS), chunked, atol=1e-4)
    np.testing.assert_allclose(every_logprobs(engine, IDS, len(IDS) - 1), decoded, atol=1e-4)


def play(engine: Engine, steps: int) -> list[list[int]]:
    """Tokens of two rows, greedy and sampled, the second of which is admitted while the first decodes."""
    planner = Planner()
    first = Row(slot=0, prompt=IDS[:9], blocks=range(6))
    second = Row(slot=3, prompt=IDS[5:12], blocks=range(8, 14), seed=5, temperature=0.8, top_p=0.9, top_k=30, repetition=1.2, frequency=0.3)
    found = [tokens_of(engine.run(planner.start(first)))]
    found.append(tokens_of(engine.run(planner.plan(admit=[second], chunks=[Chunk(3, 0, IDS[5:12], True)], decode=[0]))))
    found.append(tokens_of(engine.run(planner.plan(decode=[0, 3]))))
    found += [tokens_of(engine.run(planner.plan(decode=None))) for _ in range(steps)]
    return found


def test_tokens_equal_the_reference(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 40 if GPU else 1
    for name in ("rand-byte", "histo-headdim-byte") if GPU else ("rand-byte",):
        expected = play(make_engine(models / name, kv_tokens=512), steps)
        engine = triton_engine(models / name, monkeypatch, kv_tokens=512)
        poison(engine)
        assert play(engine, steps) == expected


def test_a_gpu_that_is_not_there(models: Path) -> None:
    with pytest.raises(ValueError, match="use --device cpu"):
        make_engine(models / "rand-byte", device="cuda:99")


@pytest.mark.skipif(not GPU, reason="the interpreter multiplies bfloat16 wrongly")
def test_bfloat16_is_the_default_and_close(models: Path) -> None:
    engine = make_engine(models / "rand-byte", device="cuda", kv_tokens=512)
    assert engine.cache.k.dtype == torch.bfloat16
    expected = every_logprobs(make_engine(models / "rand-byte", kv_tokens=512), IDS, 380)
    assert float(np.abs(every_logprobs(engine, IDS, 380) - expected).mean()) < 0.05
