"""`--deterministic` on a CPU: a request gets the same tokens and the same bits of logprobs alone, in any company, in any pieces; close to float64."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from checkpoint.structs import ModelConfig
from kernels.backend import kernels_for
from kernels.native import build, rows
from tests.kernels.test_resident_families import FAMILIES
from tests.kernels.test_triton_attention import dense
from tests.support.engines import make_engine, poison
from tests.support.gguf_files import write_twin
from tests.support.invariance import Play, Size, differing, subject
from tests.support.resident import random_decoder
from worker.memory import allocate
from worker.step import Engine

pytestmark = pytest.mark.skipif(build.library() is None, reason="needs a C compiler")
SIZE = Size(rows=8, blocks=6, prompt=37, tokens=18)
CPU = torch.device("cpu")
CONFIG: ModelConfig = replace(
    FAMILIES["mistral"], hidden=48, mlp=88, layers=2, vocab=300, head_dim=40, qk_norm=True, qkv_bias=True, window=21, window_layers=[True, False]
)  # fmt: skip
"""What any family has."""


def playing(engine: Engine) -> Play:
    """Every session begins with a pool full of NaN."""

    def play(plans: Any) -> list[Any]:
        engine.reset()
        poison(engine)
        return [engine.run(plan) for plan in plans]

    return play


def engine_of(deterministic: bool) -> Engine:
    torch.set_num_threads(1)
    kernels = kernels_for(CPU, deterministic)
    cache = allocate(CONFIG, torch.float32, SIZE.rows * SIZE.blocks, 16)
    return Engine(random_decoder(CONFIG, CPU, kernels=kernels), cache, kernels, SIZE.rows, 32, 8192)


def test_the_same_bits() -> None:
    assert differing(playing(engine_of(True)), SIZE, CONFIG.vocab, subject(SIZE, CONFIG.vocab)) == []


def test_the_same_bits_of_packed_matrices(models: Path, tmp_path: Path) -> None:
    model = write_twin(models / "rand-byte", tmp_path / "twin.gguf", kind="Q8_0")
    engine = make_engine(model, deterministic=True, max_slots=SIZE.rows, kv_tokens=SIZE.rows * SIZE.blocks * 16)
    filtered = subject(SIZE, engine.config.vocab, top_k=20, top_p=0.9)
    assert differing(playing(engine), SIZE, engine.config.vocab, filtered) == []


def test_without_the_flag_bits_differ() -> None:
    """Or the tests above would show nothing."""
    size = Size(rows=3, blocks=6, prompt=37, tokens=5)
    assert differing(playing(engine_of(False)), size, CONFIG.vocab, subject(size, CONFIG.vocab)) != []


@pytest.mark.parametrize("size", [1, 7, 40, 576])
def test_norm_and_gate_are_close(size: int) -> None:
    torch.manual_seed(size)
    x, weight = torch.randn(9, 2 * size) * 20, torch.randn(2 * size)
    torch.testing.assert_close(rows.rms_norm(x, weight, 1e-6), torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6), atol=1e-6, rtol=2e-6)
    gate, up = x.double().chunk(2, -1)
    expected = (torch.nn.functional.silu(gate) * up).float()
    torch.testing.assert_close(rows.silu_mul(x), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shape", [(4, 2, 16, None), (9, 3, 40, None), (2, 1, 128, 50), (6, 2, 7, 16)], ids=str)
def test_attention_is_close(shape: tuple[int, int, int, int | None]) -> None:
    heads, kv_heads, size, window = shape
    torch.manual_seed(size)
    k_cache, v_cache = torch.full((8, kv_heads, 16, size), torch.nan), torch.full((8, kv_heads, 16, size), torch.nan)
    table = torch.tensor([[0, 0, 0, 0, 0], [5, 2, 7, 0, 3]])
    q, k, v = torch.randn(75, heads, size), torch.randn(75, kv_heads, size), torch.randn(75, kv_heads, size)
    for position in range(75):
        k_cache[table[1, position // 16], :, position % 16] = k[position]
        v_cache[table[1, position // 16], :, position % 16] = v[position]
    found = rows.attend(q, k_cache, v_cache, table, torch.ones(75, dtype=torch.int64), torch.arange(75), window, size**-0.5)
    torch.testing.assert_close(found, dense(q.double(), k, v, 0, size**-0.5, window).float(), atol=2e-6, rtol=1e-5)


def test_what_it_cannot_do_is_refused(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[dict[str, Any]] = [{"dtype": "bfloat16"}, {"kv_dtype": "fp8"}]
    for changes in refused:
        with pytest.raises(ValueError, match="computes in float32 and keeps keys and values so"):
            make_engine(models / "rand-byte", deterministic=True, **changes)
    monkeypatch.setattr(build, "library", lambda: None)
    with pytest.raises(ValueError, match="needs the kernel that is compiled"):
        make_engine(models / "rand-byte", deterministic=True)
