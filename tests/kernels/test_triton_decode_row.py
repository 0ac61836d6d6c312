"""The kernel between the products of a decode step of a few rows, against float64 and against the kernels it stands for."""

import pytest
import torch
from torch import Tensor

from kernels import decode_row
from kernels.attention import AttentionBatch, plan_attention
from kernels.reference.rope import RopeSpec, rope_table, rotate
from tests.kernels.test_triton_attention import dense, make_cache
from tests.support.devices import DEVICE, DTYPES, GPU, assert_close, name, poisoned, randn

SHAPES = [(3, 3, 64, 16), (4, 2, 80, 16), (16, 8, 128, 16), (4, 1, 96, 1)]
STARTS = {"first": [0], "few": [15], "several": [40, 0, 16], "many": [130, 3, 64, 17]}
CASES = [
    ("first", SHAPES[0], None), ("few", SHAPES[1], None), ("several", SHAPES[1], None), ("several", SHAPES[3], None), ("many", SHAPES[0], None),
    ("few", SHAPES[2], None), ("several", SHAPES[1], 17), ("many", SHAPES[0], 50), ("first", SHAPES[0], 1), ("several", SHAPES[0], 1),
]  # fmt: skip
if GPU:
    CASES = [(starts, shape, window) for starts in STARTS for shape in SHAPES for window in (None, 1, 17, 50)]


def expected(qkv: Tensor, norms: tuple[Tensor, Tensor] | None, rope: tuple[Tensor, Tensor], heads: int, kv_heads: int, size: int) -> list[Tensor]:
    """Rotated queries, keys and values in float64."""
    q, k, v = qkv.double().view(len(qkv), -1, size).split((heads, kv_heads, kv_heads), 1)
    if norms is not None:
        q, k = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.double() for x, weight in zip((q, k), norms, strict=True))
    return [rotate(q, *rope), rotate(k, *rope), v]


@pytest.mark.parametrize("shares", [4, 32] if GPU else [4], ids=lambda n: f"S{n}")
@pytest.mark.parametrize("dtype", DTYPES if GPU else DTYPES[:1], ids=name)
@pytest.mark.parametrize(("starts", "shape", "window"), CASES, ids=lambda n: str(n).replace(", ", "x"))
def test_rope_decode(starts: str, shape: tuple[int, int, int, int], window: int | None, dtype: torch.dtype, shares: int) -> None:
    (heads, kv_heads, size, block_size), at = shape, STARTS[starts]
    torch.manual_seed(size + len(at))
    qkv = randn(len(at), (heads + 2 * kv_heads) * size, dtype=dtype)
    norms = (randn(size, dtype=dtype), randn(size, dtype=dtype)) if size > 64 else None
    cos, sin = (x.to(DEVICE) for x in rope_table(RopeSpec(), size, 256))
    positions = torch.tensor(at, device=DEVICE)
    q, k, v = expected(qkv, norms, (cos.double()[positions], sin.double()[positions]), heads, kv_heads, size)
    keys = [randn(2, start + 1, kv_heads, size, dtype=dtype) for start in at]
    k_cache, v_cache, table = make_cache(keys, at, window, block_size, dtype)
    block, offset = table[torch.arange(len(at), device=DEVICE), positions // block_size], positions % block_size
    k_cache[block, :, offset], v_cache[block, :, offset] = torch.nan, torch.nan
    before = k_cache.clone(), v_cache.clone()
    plan = plan_attention(table, at, [1] * len(at), len(at), heads, kv_heads, block_size, window)
    found = []
    for _ in range(2):
        k_cache.copy_(before[0])
        v_cache.copy_(before[1])
        found.append(poisoned(len(at), heads, size, dtype=dtype))
        decode_row.rope_decode(qkv, norms, 1e-6, (cos, sin), k_cache, v_cache, plan, 0.2, found[-1], decode_row.Settings(shares=shares))
    assert torch.equal(*found)
    assert not decode_row._counters(DEVICE).any()
    assert_close(k_cache[block, :, offset], k)
    assert torch.equal(v_cache[block, :, offset].double(), v)
    for cache, old in zip((k_cache, v_cache), before, strict=True):
        cache[block, :, offset] = torch.nan
        torch.testing.assert_close(cache, old, rtol=0, atol=0, equal_nan=True)
    for row, key in enumerate(keys):
        key[0, -1], key[1, -1] = k[row], v[row]
        assert_close(found[0][row : row + 1], dense(q[row : row + 1], key[0], key[1], at[row], 0.2, window))


def test_dummy_rows_share_a_cell() -> None:
    """Rows that only fill a step up are all at position 0 of the dummy block."""
    k_cache, v_cache = (poisoned(3, 2, 16, 64, dtype=torch.float32) for _ in range(2))
    slot, position = torch.zeros(2, 2, dtype=torch.int32, device=DEVICE)
    table = torch.full((1, 8), 2, dtype=torch.int32, device=DEVICE)
    plan = AttentionBatch(
        table=table, slot=slot, position=position, tiles=slot.new_empty(0, 2), singles=2, window=None
    )
    qkv = randn(1, 8 * 64, dtype=torch.float32).repeat(2, 1)
    cos, sin = (x.to(DEVICE) for x in rope_table(RopeSpec(), 64, 8))
    out = poisoned(2, 4, 64, dtype=torch.float32)
    decode_row.rope_attend(qkv, None, 1e-6, (cos, sin), k_cache, v_cache, plan, 0.2, out)
    assert_close(out, qkv.view(2, 8, 64)[:, 6:].repeat_interleave(2, 1).double())
    assert torch.isfinite(k_cache).sum() == 2 * 64


def test_many_rows_and_prompts_take_the_separate_kernels() -> None:
    torch.manual_seed(3)
    heads, kv_heads, size = 4, 2, 64
    cos, sin = (x.to(DEVICE) for x in rope_table(RopeSpec(), size, 64))
    starts, counts = [0, 20], [5, 1]
    keys = [randn(2, start + count, kv_heads, size, dtype=torch.float32) for start, count in zip(starts, counts, strict=True)]
    k_cache, v_cache, table = make_cache(keys, starts, None, 16, torch.float32)
    qkv = randn(6, (heads + 2 * kv_heads) * size, dtype=torch.float32)
    positions = torch.tensor([0, 1, 2, 3, 4, 20], device=DEVICE)
    q, k, v = expected(qkv, None, (cos.double()[positions], sin.double()[positions]), heads, kv_heads, size)
    out = poisoned(6, heads, size, dtype=torch.float32)
    decode_row.rope_attend(
        qkv, None, 1e-6, (cos, sin), k_cache, v_cache, plan_attention(table, starts, counts, 1, heads, kv_heads, 16), 0.2, out
    )
    assert_close(out[:5], dense(q[:5], k[:5], v[:5], 0, 0.2, None))
    keys[1][0, -1], keys[1][1, -1] = k[5], v[5]
    assert_close(out[5:], dense(q[5:], keys[1][0], keys[1][1], 20, 0.2, None))


@pytest.mark.parametrize("starts", [[40, 0, 16]] + [[(37 * row) % 900 for row in range(rows)] for rows in (9, 70, 140) if GPU], ids=len)
@pytest.mark.parametrize("shape", [(4, 2, 64), (16, 8, 128)] if GPU else [(4, 2, 64)], ids=str)
def test_two_layers_of_more_rows(starts: list[int], shape: tuple[int, int, int]) -> None:
    """Attention may ask for a row's old keys before the newest one is written, but not for that one: here it is NaN until then."""
    torch.manual_seed(7)
    (heads, kv_heads, size), dtype, rows = shape, torch.bfloat16 if GPU else torch.float32, len(starts)
    cos, sin = (x.to(DEVICE) for x in rope_table(RopeSpec(), size, 1024))
    positions = torch.tensor(starts, device=DEVICE)
    keys = [[randn(2, start + 1, kv_heads, size, dtype=dtype) for start in starts] for _ in range(2)]
    caches = []
    for of_layer in keys:
        torch.manual_seed(8)  # the same blocks in both
        caches.append(make_cache(of_layer, starts, None, 16, dtype))
    table = caches[0][2]
    qkv = randn(2, rows, (heads + 2 * kv_heads) * size, dtype=dtype)
    where = table[torch.arange(rows, device=DEVICE), positions // 16], positions % 16
    found = []
    for _ in range(2):
        found.append(poisoned(2, rows, heads, size, dtype=dtype))
        for cache in (part for layer in caches for part in layer[:2]):
            cache[where[0], :, where[1]] = torch.nan
        plan = plan_attention(table, starts, [1] * rows, rows, heads, kv_heads, 16)
        for layer in range(2):
            decode_row.rope_attend(qkv[layer], None, 1e-6, (cos, sin), *caches[layer][:2], plan, 0.2, found[-1][layer])
    assert torch.equal(*found)
    for layer in range(2):
        q, k, v = expected(qkv[layer], None, (cos.double()[positions], sin.double()[positions]), heads, kv_heads, size)
        for row in {0, 1, 2, rows - 1}:
            key = keys[layer][row].double()
            key[0, -1], key[1, -1] = k[row].to(dtype).double(), v[row]
            assert_close(found[0][layer][row : row + 1], dense(q[row : row + 1], key[0], key[1], starts[row], 0.2, None))


def test_keys_and_values_of_eight_bits_are_read_as_they_are_written() -> None:
    torch.manual_seed(4)
    heads, kv_heads, size, at = 4, 2, 64, 20
    keys = [randn(2, at + 1, kv_heads, size, dtype=torch.float32)]
    k_cache, v_cache, table = make_cache(keys, [at], None, 16, torch.float32)
    k_cache, v_cache = (torch.nan_to_num(cache).to(torch.float8_e4m3fn) for cache in (k_cache, v_cache))
    qkv = randn(1, (heads + 2 * kv_heads) * size, dtype=torch.float32)
    cos, sin = (x.to(DEVICE) for x in rope_table(RopeSpec(), size, 64))
    out = poisoned(1, heads, size, dtype=torch.float32)
    plan = plan_attention(table, [at], [1], 1, heads, kv_heads, 16)
    decode_row.rope_decode(qkv, None, 1e-6, (cos, sin), k_cache, v_cache, plan, 0.2, out, decode_row.Settings(shares=2))
    q, k, _ = expected(qkv, None, (cos.double()[at : at + 1], sin.double()[at : at + 1]), heads, kv_heads, size)
    assert_close(k_cache[int(table[0, 1]), :, at - 16].float(), k[0], 3e3)
    read_k, read_v = (cache[table[0]].float().transpose(1, 2).reshape(-1, kv_heads, size)[: at + 1] for cache in (k_cache, v_cache))
    assert_close(out, dense(q, read_k, read_v, at, 0.2, None))
