"""Triton paged attention against dense float64 attention, with every cell that must not be read poisoned."""

import pytest
import torch
from torch import Tensor

from kernels import decode_attention
from kernels.attention import attend, plan_attention
from tests.support.devices import DEVICE, DTYPES, GPU, assert_close, name, poisoned, randn

BATCHES = {
    "odd-decodes": ([0, 14, 15, 16, 62, 64], [1] * 6, 6),
    "long-and-short": ([3, 300, 5], [1] * 3, 3),
    "one-token-prefill": ([0, 17], [1, 1], 0),
    "prefills": ([0, 16, 31, 15], [63, 17, 1, 65], 0),
    "mixed": ([0, 40, 7, 129], [33, 15, 1, 1], 2),
}
SHAPES = [(3, 3, 64), (4, 2, 80), (9, 3, 64), (4, 1, 96), (8, 1, 128), (16, 8, 128)]
CASES = [
    ("odd-decodes", SHAPES[0], 16, None), ("odd-decodes", SHAPES[1], 16, 16), ("odd-decodes", SHAPES[2], 64, 50), ("odd-decodes", SHAPES[3], 1, None),
    ("long-and-short", SHAPES[4], 16, None), ("long-and-short", SHAPES[2], 16, 100), ("one-token-prefill", SHAPES[1], 16, None),
    ("prefills", SHAPES[2], 16, None), ("prefills", SHAPES[3], 64, None), ("prefills", SHAPES[4], 16, 50), ("prefills", SHAPES[1], 1, 1),
    ("mixed", SHAPES[0], 16, 16), ("mixed", SHAPES[5], 16, None), ("mixed", SHAPES[1], 16, None),
]  # fmt: skip
if GPU:
    BLOCKS = [(16, None), (64, None), (16, 16), (1, 5), (16, 50)]
    CASES = [(batch, shape, block, window) for batch in BATCHES for shape in SHAPES for block, window in BLOCKS]


def dense(q: Tensor, k: Tensor, v: Tensor, start: int, scale: float, window: int | None) -> Tensor:
    """float64: q [C, H, D] at positions start.., k and v [S, K, D] from position 0."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(groups, 1), v.double().repeat_interleave(groups, 1)
    scores = torch.einsum("chd,shd->hcs", q, k) * scale
    distance = torch.arange(start, start + len(q), device=q.device)[:, None] - torch.arange(len(k), device=q.device)[None]
    visible = (distance >= 0) & (distance < (window or 1 << 30))
    return torch.einsum("hcs,shd->chd", scores.masked_fill(~visible, -torch.inf).softmax(-1), v)


def make_cache(
    keys: list[Tensor], starts: list[int], window: int | None, block_size: int, dtype: torch.dtype, spare: int = 3
) -> tuple[Tensor, Tensor, Tensor]:
    """Caches that hold `keys` ([2, length, K, D] a row) in shuffled blocks, and the table; NaN wherever nothing may be read."""
    per_row = [-(-key.shape[1] // block_size) for key in keys]
    order = torch.randperm(sum(per_row) + spare)
    table = torch.full((len(keys), max(per_row)), -1)
    k_cache, v_cache = (poisoned(len(order) + 1, keys[0].shape[2], block_size, keys[0].shape[3], dtype=dtype) for _ in range(2))
    first = 0
    for row, (key, start) in enumerate(zip(keys, starts, strict=True)):
        table[row, : per_row[row]] = order[first : first + per_row[row]]
        first += per_row[row]
        oldest = 0 if window is None else max(0, start - window + 1)
        position = torch.arange(oldest, key.shape[1])
        cells = table[row, position // block_size].to(DEVICE), (position % block_size).to(DEVICE)
        k_cache[cells[0], :, cells[1]], v_cache[cells[0], :, cells[1]] = key[0, oldest:], key[1, oldest:]
    return k_cache, v_cache, table.to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES if GPU else DTYPES[:1], ids=name)
@pytest.mark.parametrize(("batch", "shape", "block_size", "window"), CASES, ids=lambda n: str(n).replace(", ", "x"))
def test_paged_equals_dense(batch: str, shape: tuple[int, int, int], block_size: int, window: int | None, dtype: torch.dtype) -> None:
    (starts, counts, singles), (heads, kv_heads, size) = BATCHES[batch], shape
    torch.manual_seed(1)
    keys = [randn(2, start + count, kv_heads, size, dtype=dtype) for start, count in zip(starts, counts, strict=True)]
    k_cache, v_cache, table = make_cache(keys, starts, window, block_size, dtype)
    q = randn(sum(counts), heads, size, dtype=dtype)
    out = poisoned(*q.shape, dtype=dtype)
    plan = plan_attention(table, starts, counts, singles, heads, kv_heads, block_size, window)
    attend(q, k_cache, v_cache, plan, 0.2, out)
    first = 0
    for key, start, count in zip(keys, starts, counts, strict=True):
        assert_close(out[first : first + count], dense(q[first : first + count], key[0], key[1], start, 0.2, window))
        first += count


@pytest.mark.parametrize("batch", ["mixed", "long-and-short"])
@pytest.mark.parametrize("shape", [(4, 2, 64), (16, 8, 128)], ids=lambda n: str(n).replace(", ", "x"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=name)
def test_a_cache_of_one_byte_numbers(dtype: torch.dtype, shape: tuple[int, int, int], batch: str) -> None:
    """Products with such keys and values are of float16, unless the queries are of float32."""
    (starts, counts, singles), (heads, kv_heads, size) = BATCHES[batch], shape
    torch.manual_seed(3)
    keys = [randn(2, start + count, kv_heads, size, dtype=dtype).to(torch.float8_e4m3fn) for start, count in zip(starts, counts, strict=True)]
    wide = [key.float() for key in keys]
    k_cache, v_cache, table = make_cache(wide, starts, None, 16, torch.float32)
    q = randn(sum(counts), heads, size, dtype=dtype)
    out = poisoned(*q.shape, dtype=dtype)
    plan = plan_attention(table, starts, counts, singles, heads, kv_heads, 16)
    attend(q, k_cache.to(torch.float8_e4m3fn), v_cache.to(torch.float8_e4m3fn), plan, 0.2, out)
    first = 0
    for key, start, count in zip(wide, starts, counts, strict=True):
        assert_close(out[first : first + count], dense(q[first : first + count], key[0], key[1], start, 0.2, None))
        first += count


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("way", [decode_attention.LINE, decode_attention.ITEMS, decode_attention.EITHER], ids=["line", "items", "either"])
@pytest.mark.parametrize(("tile", "programs"), [(16, 1), (64, 1), (32, 4)], ids=lambda n: f"N{n}")
def test_settings_do_not_change_the_result(tile: int, programs: int, way: int, rows: int) -> None:
    torch.manual_seed(2)
    keys = [randn(2, length, 2, 64, dtype=torch.float32) for length in (257, 1, 40)[:rows]]
    k_cache, v_cache, table = make_cache(keys, [key.shape[1] for key in keys], None, 16, torch.float32)
    q, out = randn(rows, 6, 64, dtype=torch.float32), poisoned(rows, 6, 64, dtype=torch.float32)
    slot = torch.arange(rows, dtype=torch.int32, device=DEVICE)
    position = torch.tensor([key.shape[1] - 1 for key in keys], dtype=torch.int32, device=DEVICE)
    shares = decode_attention.share_out(slot, position, None, 2, decode_attention.Settings(tile=tile, programs=programs, way=way))
    decode_attention.decode(q, k_cache, v_cache, table.int(), slot, position, shares, None, 0.1, out)
    for row, key in enumerate(keys):
        assert_close(out[row : row + 1], dense(q[row : row + 1], key[0], key[1], key.shape[1] - 1, 0.1, None))


@pytest.mark.skipif(not GPU, reason="needs memory of its own")
def test_addresses_past_two_to_the_31_bytes() -> None:
    dtype = torch.bfloat16
    keys = [randn(2, 40, 8, 128, dtype=dtype), randn(2, 70, 8, 128, dtype=dtype)]
    k_cache, v_cache, table = make_cache(keys, [39, 0], None, 16, dtype, spare=2**32 // (16 * 8 * 128 * 2))
    assert k_cache.nbytes > 2**32
    assert int(table.max()) * k_cache[0].nbytes > 2**31
    q = randn(71, 16, 128, dtype=dtype)
    out = poisoned(71, 16, 128, dtype=dtype)
    rows = table.flip(0)
    attend(q, k_cache, v_cache, plan_attention(rows, [0, 39], [70, 1], 1, 16, 8, 16), 0.1, out)
    assert_close(out[:70], dense(q[:70], keys[1][0], keys[1][1], 0, 0.1, None))
    assert_close(out[70:], dense(q[70:], keys[0][0], keys[0][1], 39, 0.1, None))
