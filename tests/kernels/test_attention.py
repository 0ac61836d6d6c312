"""Paged attention against dense float64 attention, with every cell that must not be read poisoned."""

import pytest
import torch
from torch import Tensor

from kernels.reference.attention import attend, copy_blocks, plan_attention, write_kv

BATCHES = {
    "one-decode": ([5], [1], 1),
    "equal-decodes": ([33, 33, 33], [1, 1, 1], 3),
    "odd-decodes": ([0, 14, 15, 16, 62, 64], [1] * 6, 6),
    "long-and-short": ([3, 700, 5, 130, 690], [1] * 5, 5),
    "one-prefill": ([0], [63], 0),
    "one-token-prefill": ([0, 17], [1, 1], 0),
    "continued": ([16, 31, 15], [17, 1, 65], 0),
    "mixed": ([0, 40, 7, 129], [33, 15, 1, 1], 2),
}


def make_case(lengths: list[int], kv_heads: int, block_size: int, head_dim: int, window: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """k and v caches full of NaN and a table of shuffled blocks for rows of these lengths."""
    per_row = [-(-length // block_size) for length in lengths]
    blocks = sum(per_row) + 3
    order = torch.randperm(blocks)
    table = torch.full((len(lengths), max(per_row)), blocks, dtype=torch.int64)
    first = 0
    for row, count in enumerate(per_row):
        table[row, :count] = order[first : first + count]
        first += count
    shape = (blocks + 1, kv_heads, block_size, head_dim)
    return torch.full(shape, torch.nan), torch.full(shape, torch.nan), table


def dense(q: Tensor, k: Tensor, v: Tensor, start: int, scale: float, window: int | None) -> Tensor:
    """float64: q [C, H, D] at positions start.., k and v [S, K, D] from position 0."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(groups, 1), v.double().repeat_interleave(groups, 1)
    scores = torch.einsum("chd,shd->hcs", q, k) * scale
    distance = torch.arange(start, start + len(q))[:, None] - torch.arange(len(k))[None]
    visible = (distance >= 0) & (distance < (window or 1 << 30))
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    return torch.einsum("hcs,shd->chd", weights, v)


@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(3, 3, 64), (4, 2, 80), (9, 3, 64), (4, 1, 96), (8, 1, 128)], ids=lambda n: str(n))
@pytest.mark.parametrize(("block_size", "window"), [(16, None), (64, None), (16, 16), (16, 50), (64, 1), (1, 5)], ids=lambda n: f"{n}")
def test_paged_equals_dense(
    batch: tuple[list[int], list[int], int], heads: int, kv_heads: int, head_dim: int, block_size: int, window: int | None
) -> None:
    starts, counts, singles = batch
    torch.manual_seed(1)
    lengths = [start + count for start, count in zip(starts, counts, strict=True)]
    k_cache, v_cache, table = make_case(lengths, kv_heads, block_size, head_dim, window)
    keys = [torch.randn(2, length, kv_heads, head_dim) for length in lengths]
    for row, start in enumerate(starts):  # what earlier steps wrote, but only what the window still needs
        for position in range(max(0, start - (window or start) + 1) if window else 0, start):
            cell = int(table[row, position // block_size]), slice(None), position % block_size
            k_cache[cell], v_cache[cell] = keys[row][0, position], keys[row][1, position]
    q = torch.randn(sum(counts), heads, head_dim)
    plan = plan_attention(table, starts, counts, singles, heads, kv_heads, block_size, window)
    new = torch.cat([key[:, start:] for key, start in zip(keys, starts, strict=True)], 1)
    write_kv(k_cache, v_cache, new[0], new[1], plan)
    out = torch.full_like(q, torch.nan)
    attend(q, k_cache, v_cache, plan, 0.2, out)
    first = 0
    for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
        expected = dense(q[first : first + count], keys[row][0], keys[row][1], start, 0.2, window)
        torch.testing.assert_close(out[first : first + count].double(), expected, rtol=1e-4, atol=1e-5)
        first += count


def test_dummy_and_foreign_blocks_are_not_written() -> None:
    k_cache, v_cache, table = make_case([20], 2, 16, 8, None)
    plan = plan_attention(table, [10], [10], 0, 2, 2, 16)
    write_kv(k_cache, v_cache, torch.ones(10, 2, 8), torch.ones(10, 2, 8), plan)
    assert int(torch.isfinite(k_cache).sum()) == int(torch.isfinite(v_cache).sum()) == 10 * 2 * 8
    own = k_cache[table[0]].transpose(1, 2).reshape(-1, 2, 8)
    assert bool(torch.isfinite(own[10:20]).all())


def test_addresses_past_two_to_the_31_bytes() -> None:
    """A pool of more than 2^31 elements; its pages are not touched, so it costs no memory."""
    blocks = 2**31 // (16 * 64) + 9
    k_cache, v_cache = torch.empty(blocks + 1, 1, 16, 64), torch.empty(blocks + 1, 1, 16, 64)
    table = torch.tensor([[blocks - 1, 3]])
    new = torch.randn(2, 20, 1, 64)
    plan = plan_attention(table, [0], [20], 0, 2, 1, 16)
    write_kv(k_cache, v_cache, new[0], new[1], plan)
    torch.testing.assert_close(k_cache[blocks - 1, 0], new[0, :16, 0])
    q = torch.randn(20, 2, 64)
    out = torch.empty_like(q)
    attend(q, k_cache, v_cache, plan, 0.1, out)
    torch.testing.assert_close(out.double(), dense(q, new[0], new[1], 0, 0.1, None), rtol=1e-4, atol=1e-5)


def test_copy_blocks_reads_all_sources_first() -> None:
    cache = torch.arange(4.0)[None, :, None, None, None].repeat(2, 1, 1, 2, 2)
    copy_blocks(cache, torch.tensor([0, 1]), torch.tensor([1, 2]))
    assert cache[1, :, 0, 0, 0].tolist() == [0.0, 0.0, 1.0, 3.0]
