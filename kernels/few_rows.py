"""Matrix products of 3 to 8 rows in Triton with the norm, the activation or the residual folded in. Twin: kernels.reference.products.

As for one row (kernels.gemv) a program asks for whole rows of the weight before it waits for the kernel that makes its input. Here tensor cores
multiply: every warp takes a slice of the depth, for all rows of the input at once, and the slices are added up at the end.

These kernels let the next one start as soon as they do. What waits then holds weights in its registers, so this is for products that are small
enough for two of them to be on the card at once.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from kernels.gemv import no_tiles, with_tile
from kernels.launch import ALWAYS, cdiv, launch, power_of_two, trigger, wait
from kernels.mlp import silu

MOST_ROWS = 8
NARROWEST, DEEPEST, WIDEST = 1024, 3072, 16_384
"""Largest smaller side, depth and columns of the weights that this is for: others were slower (bench/GPU.md) or do not fit."""


class Settings(NamedTuple):
    """Tuning of a product: rows of the weight for one program, warps, and slices of the depth."""

    rows: int
    warps: int
    slices: int


@triton.jit
def _tiles(
    x_ptr: tl.tensor, row: tl.tensor, rows: tl.tensor, K: tl.constexpr, SLICES: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr,
    EVEN: tl.constexpr,
) -> Any:  # fmt: skip
    """Rows `row` of a matrix [rows, K] as a tuple of PIECES tiles [SLICES, rows, PIECE / SLICES], zero where there is nothing."""
    LENGTH: tl.constexpr = PIECE // SLICES
    column = (tl.arange(0, SLICES) * LENGTH)[:, None, None] + tl.arange(0, LENGTH)[None, None, :]
    cell = row.to(tl.int64)[None, :, None] * K + column
    tiles = no_tiles()
    for piece in tl.static_range(PIECES):
        if EVEN:
            tiles = with_tile(tiles, tl.load(x_ptr + cell + piece * PIECE))
        else:
            there = (row < rows)[None, :, None] & (piece * PIECE + column < K)
            tiles = with_tile(tiles, tl.load(x_ptr + cell + piece * PIECE, mask=there, other=0.0))
    return tiles


@triton.jit
def _gammas(norm_ptr: tl.tensor, K: tl.constexpr, SLICES: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr) -> Any:
    """The norm's weight as PIECES blocks [SLICES, 1, PIECE / SLICES] in float32."""
    LENGTH: tl.constexpr = PIECE // SLICES
    column = (tl.arange(0, SLICES) * LENGTH)[:, None, None] + tl.arange(0, LENGTH)[None, None, :]
    blocks = no_tiles()
    for piece in tl.static_range(PIECES):
        blocks = with_tile(blocks, tl.load(norm_ptr + piece * PIECE + column, mask=piece * PIECE + column < K, other=0.0).to(tl.float32))
    return blocks


@triton.jit
def _inverse(x: tl.tensor, eps: tl.tensor, K: tl.constexpr, PIECES: tl.constexpr) -> Any:
    """1 / sqrt(mean(x^2) + eps) of every row."""
    square = x[0].to(tl.float32) * x[0].to(tl.float32)
    for piece in tl.static_range(1, PIECES):
        square += x[piece].to(tl.float32) * x[piece].to(tl.float32)
    return tl.rsqrt(tl.sum(tl.sum(square, 2), 0) / K + eps)


@triton.jit
def _weighted(w: tl.tensor, gamma: tl.tensor, PIECES: tl.constexpr, dtype: tl.constexpr) -> Any:
    """The weight's rows times the norm's weight, rounded to the type of x: as exact as x times the norm's weight, and done before the wait."""
    tiles = no_tiles()
    for piece in tl.static_range(PIECES):
        tiles = with_tile(tiles, (w[piece].to(tl.float32) * gamma[piece]).to(dtype))
    return tiles


@triton.jit
def _dot(w: tl.tensor, x: tl.tensor, PIECES: tl.constexpr) -> Any:
    """The weight's rows times the rows of x, [rows of the weight, rows of x] in float32."""
    total = tl.dot(w[0], tl.permute(x[0], (0, 2, 1)), input_precision="ieee")
    for piece in tl.static_range(1, PIECES):
        total = tl.dot(w[piece], tl.permute(x[piece], (0, 2, 1)), total, input_precision="ieee")
    return tl.sum(total, 0)


@triton.jit(do_not_specialize=["rows"])
def _few(
    x_ptr: tl.tensor, norm_ptr: tl.tensor, w_ptr: tl.tensor, bias_ptr: tl.tensor, out_ptr: tl.tensor, eps: tl.tensor,
    rows: tl.tensor, N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SLICES: tl.constexpr, PIECE: tl.constexpr,
    PIECES: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """out [rows, N] of x [rows, K] and the weight [N, K], or [2N, K] when GATED."""
    trigger(PDL)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = column < N
    EVEN: tl.constexpr = (N % BN == 0) and (K == PIECE * PIECES)
    w = _tiles(w_ptr, column, N, K, SLICES, PIECE, PIECES, EVEN)
    if GATED:
        up_w = _tiles(w_ptr + N * K, column, N, K, SLICES, PIECE, PIECES, EVEN)
    if NORM:
        gamma = _gammas(norm_ptr, K, SLICES, PIECE, PIECES)
        w = _weighted(w, gamma, PIECES, x_ptr.dtype.element_ty)
        if GATED:
            up_w = _weighted(up_w, gamma, PIECES, x_ptr.dtype.element_ty)
    bias = tl.load(bias_ptr + column, mask=inside, other=0.0).to(tl.float32) if BIAS else tl.zeros([BN], tl.float32)
    row = tl.arange(0, BM)
    target = out_ptr + row[None, :] * N + column[:, None]
    there = inside[:, None] & (row < rows)[None, :]
    wait(PDL)
    start = tl.load(target, mask=there, other=0.0).to(tl.float32) if ADD else tl.zeros([BN, BM], tl.float32)
    x = _tiles(x_ptr, row, rows, K, SLICES, PIECE, PIECES, False)
    y = _dot(w, x, PIECES)
    if NORM:
        inverse = _inverse(x, eps, K, PIECES)
        y = y * inverse[None, :]
    if GATED:
        up = _dot(up_w, x, PIECES)
        if NORM:
            up = up * inverse[None, :]
        y = silu(y) * up
    tl.store(target, (y + bias[:, None] + start).to(out_ptr.dtype.element_ty), mask=there)


def pieces(columns: int) -> tuple[int, int]:
    """How a row of the weight is cut: size (a power of two) and number of its pieces; only a single piece may be padded."""
    size = min(2048, columns & -columns)
    return (size, columns // size) if size >= 512 else (power_of_two(columns), 1)


def wins(rows: int, columns: int, depth: int, gated: bool) -> bool:
    """Whether this was measured to be faster, in whole steps, than `kernels.skinny` (bench/GPU.md)."""
    return rows <= MOST_ROWS and columns <= WIDEST and depth <= (NARROWEST if gated else DEEPEST) and min(columns, depth) <= NARROWEST


def settings_for(columns: int, depth: int) -> Settings:
    """The settings measured best (bench/GPU.md)."""
    return Settings(8, 8, 8) if columns <= 1024 and depth <= 2048 else Settings(16, 4, 4)


def product(
    x_TM: Tensor, norm_M: Tensor | None, eps: float, weight: Tensor, bias: Tensor | None, out_TN: Tensor, gated: bool, add: bool,
    settings: Settings | None = None,
) -> None:  # fmt: skip
    """As `kernels.gemv.product`, for at most MOST_ROWS rows and weights of the type of x."""
    (rows, depth), columns = x_TM.shape, out_TN.shape[1]
    chosen = settings or settings_for(columns, depth)
    size, count = pieces(depth)
    launch(
        _few, (cdiv(columns, chosen.rows),), ALWAYS, x_TM, norm_M, weight, bias, out_TN, eps, rows,
        N=columns, K=depth, BM=max(8, power_of_two(rows)), BN=chosen.rows, SLICES=min(chosen.slices, size // 16), PIECE=size, PIECES=count,
        NORM=norm_M is not None, GATED=gated, ADD=add, BIAS=bias is not None,
        num_warps=chosen.warps, num_stages=1,
    )  # fmt: skip
