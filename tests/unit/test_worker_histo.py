"""The `histo` fixture: logprobs say exactly which tokens attention saw; through chunks, block sizes, windows, reuse of slots and blocks."""

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.support.engines import every_logprobs, full_logprobs, last_logprobs, make_engine, poison
from tests.support.plans import Chunk, Planner, Row

MAKER = Path(__file__).resolve().parents[1] / "fixtures" / "make_fixtures.py"
IDS = [(i * i + 3 * i) % 41 + 5 for i in range(150)]


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_fixtures", MAKER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def closed_form(model: Path, ids: list[int], window: int | None = None) -> NDArray[np.float64]:
    """Log-softmax [tokens, vocab]."""
    logits = maker().forward(load_file(model / "model.safetensors"), ids, window).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    result: NDArray[np.float64] = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return result


@pytest.mark.parametrize("name", ["histo-byte", "histo-headdim-byte"])
@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("cuts", [[150], [1, 15, 16, 17, 33, 150], [64, 128, 149, 150]], ids=["whole", "odd", "even"])
def test_chunked_prefill(models: Path, name: str, block_size: int, cuts: list[int]) -> None:
    engine = make_engine(models / name, block_size=block_size)
    poison(engine)
    found = last_logprobs(engine, IDS, cuts, slot=3, blocks=[9, 2, 7, 1, 0, 5, 3, 8, 6, 4][: -(-150 // block_size)])
    np.testing.assert_allclose(found, closed_form(models / name, IDS)[-1], atol=1e-3)


def test_decode_and_reuse(models: Path) -> None:
    """Rows that take over slots and blocks of others, at different lengths in one batch, see nothing of them."""
    engine = make_engine(models / "histo-byte")
    planner = Planner()
    poison(engine)
    flood = Row(slot=0, prompt=[200] * 100, blocks=range(7))
    engine.run(planner.start(flood))
    rows = [Row(slot=slot, prompt=IDS[: 20 + 31 * slot], blocks=range(7 * slot, 7 * slot + 7), logprobs=engine.slots.vocab) for slot in range(3)]
    chunks = [Chunk(row.slot, 0, row.prompt, True) for row in rows]
    engine.run(planner.plan(release=[0], admit=rows, chunks=chunks))
    for step in range(20):
        for row in rows:
            engine.slots.last[row.slot] = IDS[len(row.prompt) + step]
        found = full_logprobs(engine.run(planner.plan(decode=[0, 1, 2])), engine.slots.vocab)
        for line, slot in zip(found, range(3), strict=True):
            ids = IDS[: len(rows[slot].prompt) + step + 1]
            np.testing.assert_allclose(line, closed_form(models / "histo-byte", ids)[-1], atol=1e-3)


@pytest.mark.parametrize("block_size", [16, 64])
def test_sliding_window_is_exact(models: Path, tmp_path: Path, block_size: int) -> None:
    """Exactly 64 keys, the current one included, in whole and chunked prefill and in decode."""
    model = tmp_path / "windowed"
    shutil.copytree(models / "histo-byte", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 64}))
    expected = closed_form(model, IDS, 64)
    engine = make_engine(model, block_size=block_size)
    poison(engine)
    for cuts in ([150], [30, 70, 149, 150]):
        np.testing.assert_allclose(last_logprobs(engine, IDS, cuts), expected[-1], atol=1e-3)
    np.testing.assert_allclose(every_logprobs(engine, IDS, 60), expected[59:], atol=1e-3)
