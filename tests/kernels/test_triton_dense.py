"""Triton norms, the gated activation and the rotation with its cache write against float64."""

import pytest
import torch

from kernels.attention import plan_attention
from kernels.mlp import silu_mul
from kernels.norm import add_rms_norm, rms_norm
from kernels.reference.rope import RopeSpec, rope_table, rotate
from kernels.rope_kv import rope_kv
from tests.support.devices import DEVICE, DTYPES, GPU, assert_close, name, poisoned, randn


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (2, 63), (3, 576), (2, 1024), (1, 4097)], ids=lambda n: str(n))
def test_norms(rows: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(rows * size)
    residual, x, weight = randn(rows, size, dtype=dtype), randn(rows, size, dtype=dtype), randn(size, dtype=dtype)
    plain = residual.double()
    assert_close(rms_norm(residual, weight, 1e-5), plain * torch.rsqrt(plain.square().mean(-1, keepdim=True) + 1e-5) * weight.double())
    total = (residual + x).double()
    normed = add_rms_norm(residual, x, weight, 1e-5)
    assert torch.equal(residual.double(), total)
    assert_close(normed, total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-5) * weight.double())


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 65), (2, 2049)], ids=lambda n: str(n))
def test_silu_mul(rows: int, size: int, dtype: torch.dtype) -> None:
    x = randn(rows, 2 * size, dtype=dtype) * 8
    gate, up = x.double().chunk(2, -1)
    assert_close(silu_mul(x), gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize("dtype", DTYPES if GPU else DTYPES[:1], ids=name)
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(3, 3, 64), (9, 3, 80), (4, 1, 96), (16, 8, 128), (2, 1, 8)], ids=lambda n: str(n))
def test_rope_kv(heads: int, kv_heads: int, size: int, normed: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(heads + size)
    starts, counts, block_size = [14, 0, 40], [3, 2, 1], 16
    table = torch.tensor([[4, 2, -1], [6, -1, -1], [0, 5, 1]], device=DEVICE)
    plan = plan_attention(table, starts, counts, 1, heads, kv_heads, block_size)
    qkv = randn(6, (heads + 2 * kv_heads) * size, dtype=dtype)
    k_cache, v_cache = (poisoned(8, kv_heads, block_size, size, dtype=dtype) for _ in range(2))
    cos, sin = (x.to(DEVICE) for x in rope_table(RopeSpec(), size, 48))
    norms = (randn(size, dtype=dtype), randn(size, dtype=dtype)) if normed else None
    q_out = rope_kv(qkv, norms, 1e-6, (cos, sin), k_cache, v_cache, plan)

    q, k, v = qkv.double().view(6, -1, size).split((heads, kv_heads, kv_heads), 1)
    if norms is not None:
        q, k = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.double() for x, weight in zip((q, k), norms, strict=True))
    positions = torch.tensor([14, 15, 16, 0, 1, 40], device=DEVICE)
    rows = cos.double()[positions], sin.double()[positions]
    blocks, offsets = torch.tensor([4, 4, 2, 6, 6, 1], device=DEVICE), positions % block_size
    assert_close(q_out, rotate(q, *rows))
    assert_close(k_cache[blocks, :, offsets], rotate(k, *rows))
    assert torch.equal(v_cache[blocks, :, offsets].double(), v)
    for cache in (k_cache, v_cache):
        assert int(torch.isfinite(cache).sum()) == 6 * kv_heads * size
