"""Matrix products of one row in Triton with the norm, the activation or the residual folded in.

These are bound by reading the weights. A program takes a few whole rows of the weight and asks for all of them before it waits for the kernel
that makes its input, so with dependent launch the weights are on their way while that one still runs. Twin of kernels.reference.gemv.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import cdiv, launch, power_of_two, trigger, wait
from kernels.mlp import silu

MANY_ROWS = 32_768
"""Rows of the weight of a head."""
SMALLEST_COLUMNS = 256
WARP_COLUMNS = 256
"""Elements that a warp loads at once, 16 bytes a thread: with one such piece after the other all sums but one are part of a multiplication."""


class Settings(NamedTuple):
    """Tuning of a product: rows of the weight for one program and warps."""

    rows: int
    warps: int


@triton.jit
def no_tiles() -> Any:
    """A tuple that `with_tile` adds to."""
    return ()


@triton.jit
def with_tile(tiles: tl.tensor, tile: tl.tensor) -> Any:
    return tiles + (tile,)  # noqa: RUF005 (Triton's compiler knows no starred tuple)


@triton.jit
def _weights(
    w_ptr: tl.tensor, row: tl.tensor, N: tl.constexpr, K: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, EVEN: tl.constexpr
) -> Any:
    """Rows `row` of the weight [N, K] as a tuple of PIECES tiles [rows, PIECE]."""
    column = tl.arange(0, PIECE)
    tiles = no_tiles()
    for piece in tl.static_range(PIECES):
        cell = w_ptr + row.to(tl.int64)[:, None] * K + (piece * PIECE + column)[None, :]
        if EVEN:
            tiles = with_tile(tiles, tl.load(cell))
        else:
            tiles = with_tile(tiles, tl.load(cell, mask=(row < N)[:, None] & (piece * PIECE + column < K)[None, :], other=0.0))
    return tiles


@triton.jit
def _row(x_ptr: tl.tensor, K: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr) -> Any:
    """A row [K] as a tuple of PIECES blocks [PIECE], zero past its end."""
    blocks = no_tiles()
    for piece in tl.static_range(PIECES):
        column = piece * PIECE + tl.arange(0, PIECE)
        blocks = with_tile(blocks, tl.load(x_ptr + column, mask=column < K, other=0.0))
    return blocks


@triton.jit
def _low(x: tl.tensor, PAIRED: tl.constexpr) -> Any:
    """x in float32, or the lower ones of its pairs of bfloat16 values."""
    return (x << 16).to(tl.float32, bitcast=True) if PAIRED else x.to(tl.float32)


@triton.jit
def _high(x: tl.tensor) -> Any:
    """The upper ones of pairs of bfloat16 values, in float32."""
    return (x & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _normed(x: tl.tensor, gamma: tl.tensor, PIECES: tl.constexpr, NORM: tl.constexpr, PAIRED: tl.constexpr) -> Any:
    """x (times the norm's weight) in float32: its blocks, or those of the lower and those of the upper ones; and the sum of its squares."""
    low = no_tiles()
    high = no_tiles()
    square = _low(x[0], PAIRED) * _low(x[0], PAIRED)
    for piece in tl.static_range(PIECES):
        y = _low(x[piece], PAIRED)
        if NORM and piece > 0:
            square += y * y
        low = with_tile(low, y * _low(gamma[piece], PAIRED) if NORM else y)
        if PAIRED:
            y = _high(x[piece])
            if NORM:
                square += y * y
            high = with_tile(high, y * _high(gamma[piece]) if NORM else y)
    return low, high, tl.sum(square, 0) if NORM else 0.0


@triton.jit
def _dot(low: tl.tensor, high: tl.tensor, tiles: tl.tensor, PIECES: tl.constexpr, PAIRED: tl.constexpr) -> Any:
    """The weight's rows times a row: [rows] in float32. One sum across threads for all pieces."""
    total = _low(tiles[0], PAIRED) * low[0][None, :]
    for piece in tl.static_range(PIECES):
        if piece > 0:
            total += _low(tiles[piece], PAIRED) * low[piece][None, :]
        if PAIRED:
            total += _high(tiles[piece]) * high[piece][None, :]
    return tl.sum(total, 1)


@triton.jit
def _gemv(
    x_ptr: tl.tensor, norm_ptr: tl.tensor, w_ptr: tl.tensor, scale_ptr: tl.tensor, bias_ptr: tl.tensor, out_ptr: tl.tensor, eps: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, SCALED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, PAIRED: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """out [ROWS, N] of x [ROWS, K] and the weight [N, K], or [2N, K] when GATED.

    PAIRED: x, norm and weight are pairs of bfloat16 values as int32, K of them in a row. That is one instruction less for every element.
    """
    trigger(PDL)
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = row < N
    EVEN: tl.constexpr = (N % BN == 0) and (K == PIECE * PIECES)
    tiles = _weights(w_ptr, row, N, K, PIECE, PIECES, EVEN)
    if GATED:
        up_tiles = _weights(w_ptr + N * K, row, N, K, PIECE, PIECES, EVEN)
    gamma = _row(norm_ptr, K, PIECE, PIECES) if NORM else no_tiles()
    scale = tl.load(scale_ptr + row, mask=inside, other=0.0) if SCALED else tl.full([BN], 1.0, tl.float32)
    up_scale = tl.load(scale_ptr + N + row, mask=inside, other=0.0) if SCALED and GATED else scale
    bias = tl.load(bias_ptr + row, mask=inside, other=0.0).to(tl.float32) if BIAS else tl.zeros([BN], tl.float32)
    wait(PDL)
    for r in tl.static_range(ROWS):
        target = out_ptr + r * N + row
        start = tl.load(target, mask=inside, other=0.0).to(tl.float32) if ADD else tl.zeros([BN], tl.float32)
        x = _row(x_ptr + r * K, K, PIECE, PIECES)
        low, high, square = _normed(x, gamma, PIECES, NORM, PAIRED)
        inverse = tl.rsqrt(square / (2 * K if PAIRED else K) + eps) if NORM else 1.0
        y = _dot(low, high, tiles, PIECES, PAIRED) * inverse * scale
        if GATED:
            y = silu(y) * _dot(low, high, up_tiles, PIECES, PAIRED) * inverse * up_scale
        tl.store(target, (y + bias + start).to(out_ptr.dtype.element_ty), mask=inside)


def pieces(columns: int, warps: int) -> tuple[int, int]:
    """How a row of the weight is cut: size (a power of two) and number of its pieces; only a single piece may be padded."""
    size = min(max(SMALLEST_COLUMNS, warps * WARP_COLUMNS), columns & -columns)
    return (size, columns // size) if size >= SMALLEST_COLUMNS else (power_of_two(columns), 1)


def settings_for(count: int, rows: int, columns: int, gated: bool) -> Settings:
    """Rows of the weight and warps of a program for `count` rows of input, the best in whole steps (bench/GPU.md).

    64 to 128 elements of the weight for a thread, and as few warps as that allows: a sum across warps takes longer than one within.
    """
    if count > 1:
        if columns in (1024, 3072) and not gated:
            return Settings(8, 4) if columns == 1024 else Settings(4, 4)
        fitting = 4096 // (columns * (2 if gated else 1))
        return Settings(8 if fitting >= 8 else 4 if fitting >= 4 else 2 if fitting >= 2 else 1, 1)
    if rows > MANY_ROWS:
        return Settings(8, 8) if columns <= 1024 else Settings(4, 2) if columns < 4096 else Settings(2, 8)
    if columns <= 1024:
        return Settings(4, 2)
    if columns <= 2048:
        return Settings(8, 4) if rows > 2048 and not gated else Settings(2, 2)
    if columns < 4096:
        return Settings(2, 4) if gated else Settings(2, 1)
    if columns == 4096:
        return Settings(1, 4) if gated else Settings(2, 2 if rows > 4096 else 4)
    return Settings(4 if columns <= 8192 else 2, 8)


def product(
    x_1M: Tensor, norm_M: Tensor | None, eps: float, weight: Tensor, bias: Tensor | None, out_1N: Tensor, gated: bool, add: bool,
    settings: Settings | None = None, scale: Tensor | None = None,
) -> None:  # fmt: skip
    """Into (or, with `add`, onto) `out_1N` the product of rms_norm(x), or x without a norm, with `weight` [N, M]; [2N, M], gate first, if gated.

    All contiguous; sums in float32, each multiplied by the float32 `scale` of its row of the weight, [N] or [2N], if there is one: so the weight
    may be of a type of 8 bits. More rows than one work too, one after the other.
    """
    rows, columns = out_1N.shape[1], weight.shape[1]
    chosen = settings or settings_for(len(x_1M), rows, columns, gated)
    paired = x_1M.dtype == weight.dtype == torch.bfloat16 and columns % 2 == 0
    size, count = pieces(columns, chosen.warps)
    if paired:
        x_1M, weight, norm_M = x_1M.view(torch.int32), weight.view(torch.int32), None if norm_M is None else norm_M.view(torch.int32)
        columns, size = columns // 2, size // 2
    launch(
        _gemv, (cdiv(rows, chosen.rows),), len(x_1M), x_1M, norm_M, weight, scale, bias, out_1N, eps,
        N=rows, K=columns, ROWS=len(x_1M), BN=chosen.rows, PIECE=size, PIECES=count,
        NORM=norm_M is not None, GATED=gated, SCALED=scale is not None, ADD=add, BIAS=bias is not None, PAIRED=paired,
        num_warps=chosen.warps, num_stages=1,
    )  # fmt: skip
