"""Attention of `--deterministic`: a token gets the same bits in a chunk of any length, decoded, and in any company; close to float64."""

import pytest
import torch
from torch import Tensor

from kernels.attention import AttentionBatch, plan_attention
from kernels.invariant.attention import rope_attend
from tests.kernels.test_triton_attention import dense
from tests.support.devices import DEVICE, DTYPES, GPU, assert_close, name, poisoned, randn

BLOCK = 16
SHAPES = [(16, 8, 128, None), (32, 8, 64, None), (4, 2, 80, None), (4, 1, 96, None), (9, 3, 64, None), (8, 2, 64, 50), (16, 8, 128, 64)]
LENGTHS = [1, 16, 17, 64, 65, 150, 333, 700] if GPU else [2, 21]
if not GPU:
    SHAPES = [(4, 2, 16, None), (2, 2, 24, 9)]


class Rows:
    """Rows of `lengths` tokens whose q, k and v are given; `play` computes them, as pieces say, into a cache that was full of NaN."""

    def __init__(self, heads: int, kv_heads: int, size: int, window: int | None, dtype: torch.dtype) -> None:
        self.heads, self.kv_heads, self.size, self.window, self.dtype = heads, kv_heads, size, window, dtype
        torch.manual_seed(heads + size)
        self.qkv = [randn(length, (heads + 2 * kv_heads) * size, dtype=dtype) for length in LENGTHS]
        self.norms = randn(size, dtype=dtype), randn(size, dtype=dtype)
        angles = torch.rand(max(LENGTHS), size // 2, device=DEVICE) * 6
        self.rope = angles.cos().repeat(1, 2), torch.cat((-angles.sin(), angles.sin()), 1)
        self.width = -(-max(LENGTHS) // BLOCK)
        self.table = torch.randperm(len(LENGTHS) * self.width).view(len(LENGTHS), self.width).to(DEVICE)
        self.out = [torch.full((length, heads, size), torch.nan, device=DEVICE, dtype=dtype) for length in LENGTHS]
        shape = len(LENGTHS) * self.width + 1, kv_heads, BLOCK, size
        self.k, self.v = poisoned(*shape, dtype=dtype), poisoned(*shape, dtype=dtype)

    def step(self, pieces: list[tuple[int, int, int]], singles: int) -> None:
        """One step of (row, start, count), the last `singles` of which are decode rows."""
        rows, starts, counts = (list(column) for column in zip(*pieces, strict=True))
        plan: AttentionBatch = plan_attention(
            self.table[rows], starts, counts, singles, self.heads, self.kv_heads, BLOCK, self.window
        )  # fmt: skip
        qkv = torch.cat([self.qkv[row][start : start + count] for row, start, count in pieces])
        out = qkv.new_full((len(qkv), self.heads, self.size), torch.nan)
        rope_attend(qkv, self.norms, 1e-6, self.rope, self.k, self.v, plan, self.size**-0.5, out)
        for (row, start, count), part in zip(pieces, out.split(counts), strict=True):
            self.out[row][start : start + count] = part

    def keys(self, row: int) -> tuple[Tensor, Tensor]:
        k, v = (cache[self.table[row]].transpose(1, 2).reshape(-1, self.kv_heads, self.size)[: LENGTHS[row]] for cache in (self.k, self.v))
        return k, v


def whole(rows: Rows) -> None:
    for row, length in enumerate(LENGTHS):
        rows.step([(row, 0, length)], 0)


def together(rows: Rows) -> None:
    rows.step([(row, 0, length) for row, length in enumerate(LENGTHS)], 0)


def in_pieces(rows: Rows) -> None:
    """All rows side by side, in chunks of 1 to 40 tokens; the last tokens of each are decoded."""
    done, turn = [0] * len(LENGTHS), 0
    while any(at < length for at, length in zip(done, LENGTHS, strict=True)):
        chunks, singles = [], []
        for row, length in enumerate(LENGTHS):
            left, turn = length - done[row], turn + 1
            count = min(left, 1 + 17 * turn % 40)
            if 0 < left < 12:
                singles.append((row, done[row], 1))
            elif left:
                chunks.append((row, done[row], count))
        for row, _, count in [*chunks, *singles]:
            done[row] += count
        rows.step([*chunks, *singles], len(singles))


def decoded(rows: Rows) -> None:
    """Every row token by token, beside the others."""
    for position in range(max(LENGTHS)):
        pieces = [(row, position, 1) for row, length in enumerate(LENGTHS) if position < length]
        rows.step(pieces, len(pieces))


@pytest.mark.parametrize("dtype", DTYPES if GPU else DTYPES[:1], ids=name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.timeout(200)
def test_a_token_is_the_same_in_all_ways(shape: tuple[int, int, int, int | None], dtype: torch.dtype) -> None:
    first = Rows(*shape, dtype)
    whole(first)
    for way in (together, in_pieces, decoded):
        other = Rows(*shape, dtype)
        way(other)
        differing = [length for length, found, expected in zip(LENGTHS, other.out, first.out, strict=True) if not torch.equal(found, expected)]
        assert differing == [], way.__name__
    _, _, size, window = shape
    for row, length in enumerate(LENGTHS):
        query = turned(first, row)
        k, v = first.keys(row)
        assert bool(torch.isfinite(first.out[row]).all())
        assert_close(first.out[row], dense(query, k, v, 0, size**-0.5, window), 2.0)
        assert length == len(first.out[row])


def turned(rows: Rows, row: int) -> Tensor:
    """Queries after norm and rotation, in float64."""
    q = rows.qkv[row].double().view(LENGTHS[row], -1, rows.size)[:, : rows.heads]
    q = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + 1e-6) * rows.norms[0].double()
    cos, sin = (table[: LENGTHS[row], None].double() for table in rows.rope)
    return q * cos + torch.roll(q, rows.size // 2, -1) * sin
