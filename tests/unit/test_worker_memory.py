"""The size of the KV pool: what is asked for, what fits, and shrinking when memory does not suffice."""

from pathlib import Path

import pytest
import torch

from checkpoint.config import ModelConfig, RopeConfig
from worker.memory import PoolError, allocate, available_bytes, choose_blocks, token_bytes

CONFIG = ModelConfig(
    family="llama", hidden=8, layers=2, heads=2, kv_heads=2, head_dim=4, mlp=8, vocab=9, context=64, norm_eps=1e-5, rope=RopeConfig()
)  # fmt: skip


def test_choice() -> None:
    size = token_bytes(CONFIG, torch.float32)
    assert size == 2 * 2 * 2 * 4 * 4
    assert token_bytes(CONFIG, torch.float8_e4m3fn) == size // 4
    assert choose_blocks(100, 16, 4, 64, size, 1 << 30) == 7
    assert choose_blocks(0, 16, 4, 64, size, 1 << 30) == 16
    assert choose_blocks(0, 16, 4, 64, size, 16 * size * 8) == 2
    assert choose_blocks(10**9, 16, 4, 64, size, 16 * size * 10) == 8
    assert choose_blocks(0, 16, 4, 64, size, 0) == 1


def test_cgroup_limit(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) > 0
    (tmp_path / "memory.current").write_text("600\n")
    (tmp_path / "memory.max").write_text("1000\n")
    assert available_bytes(tmp_path) == 400
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(tmp_path) > 400


def test_pool_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.empty

    def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        if shape[1] > 50:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return real(shape, dtype=dtype, device=device)

    monkeypatch.setattr("worker.memory.torch.empty", empty)
    cache = allocate(CONFIG, torch.float32, 100, 16)
    assert 30 < cache.blocks < 50
    assert cache.k.shape == (2, cache.blocks + 1, 2, 16, 4)
    monkeypatch.setattr("worker.memory.torch.empty", lambda shape, dtype, device: empty((0, 100), dtype, device))
    with pytest.raises(PoolError):
        allocate(CONFIG, torch.float32, 100, 16)
