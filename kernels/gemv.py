"""Matrix products of 1 to 8 rows in Triton with the norm, the activation or the residual folded in. Twin of kernels.reference.gemv.

These are bound by reading the weights. A program takes a few whole rows of the weight and asks for all of them before it waits for the kernel
that makes its input, so with dependent launch the weights are on their way while that one still runs.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import launch, power_of_two, trigger, wait
from kernels.mlp import silu

MOST_ROWS = 8
MOST_COLUMNS = 2048
SMALLEST_COLUMNS = 512


class Settings(NamedTuple):
    """Tuning of a product: rows of the weight for one program and warps."""

    rows: int
    warps: int


@triton.jit
def _none() -> Any:
    return ()


@triton.jit
def _with(tiles: tl.tensor, tile: tl.tensor) -> Any:
    return tiles + (tile,)  # noqa: RUF005 (Triton's compiler knows no starred tuple)


@triton.jit
def _weights(
    w_ptr: tl.tensor, row: tl.tensor, N: tl.constexpr, K: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, EVEN: tl.constexpr
) -> Any:
    """Rows `row` of the weight [N, K] as a tuple of PIECES tiles [rows, PIECE]."""
    column = tl.arange(0, PIECE)
    tiles = _none()
    for piece in tl.static_range(PIECES):
        cell = w_ptr + row.to(tl.int64)[:, None] * K + (piece * PIECE + column)[None, :]
        if EVEN:
            tiles = _with(tiles, tl.load(cell))
        else:
            tiles = _with(tiles, tl.load(cell, mask=(row < N)[:, None] & (piece * PIECE + column < K)[None, :], other=0.0))
    return tiles


@triton.jit
def _scale(x_ptr: tl.tensor, eps: tl.tensor, K: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr) -> Any:
    """1 / sqrt(mean(x^2) + eps) of one row."""
    square = tl.zeros([PIECE], tl.float32)
    for piece in tl.static_range(PIECES):
        column = piece * PIECE + tl.arange(0, PIECE)
        x = tl.load(x_ptr + column, mask=column < K, other=0.0).to(tl.float32)
        square += x * x
    return tl.rsqrt(tl.sum(square, 0) / K + eps)


@triton.jit
def _dot(
    x_ptr: tl.tensor, norm_ptr: tl.tensor, tiles: tl.tensor, K: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr, NORM: tl.constexpr
) -> Any:
    """The weight's rows times one row of x (times the norm's weight): [rows] in float32."""
    total = tl.zeros([tiles[0].shape[0]], tl.float32)
    for piece in tl.static_range(PIECES):
        column = piece * PIECE + tl.arange(0, PIECE)
        x = tl.load(x_ptr + column, mask=column < K, other=0.0).to(tl.float32)
        if NORM:
            x = x * tl.load(norm_ptr + column, mask=column < K, other=0.0).to(tl.float32)
        total += tl.sum(tiles[piece].to(tl.float32) * x[None, :], 1)
    return total


@triton.jit
def _gemv(
    x_ptr: tl.tensor, norm_ptr: tl.tensor, w_ptr: tl.tensor, bias_ptr: tl.tensor, out_ptr: tl.tensor, eps: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, PIECE: tl.constexpr, PIECES: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """out [ROWS, N] of x [ROWS, K] and the weight [N, K], or [2N, K] when GATED."""
    trigger(PDL)
    row = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = row < N
    EVEN: tl.constexpr = (N % BN == 0) and (K == PIECE * PIECES)
    tiles = _weights(w_ptr, row, N, K, PIECE, PIECES, EVEN)
    if GATED:
        up_tiles = _weights(w_ptr + N * K, row, N, K, PIECE, PIECES, EVEN)
    wait(PDL)
    for r in tl.static_range(ROWS):
        source = x_ptr + r * K
        y = _dot(source, norm_ptr, tiles, K, PIECE, PIECES, NORM)
        if NORM:
            scale = _scale(source, eps, K, PIECE, PIECES)
            y = y * scale
        if GATED:
            y = silu(y) * _dot(source, norm_ptr, up_tiles, K, PIECE, PIECES, NORM) * scale
        if BIAS:
            y += tl.load(bias_ptr + row, mask=inside, other=0.0).to(tl.float32)
        target = out_ptr + r * N + row
        if ADD:
            y += tl.load(target, mask=inside, other=0.0).to(tl.float32)
        tl.store(target, y.to(out_ptr.dtype.element_ty), mask=inside)


def pieces(columns: int) -> tuple[int, int]:
    """How a row of the weight is cut: size (a power of two) and number of its pieces; only a single piece may be padded."""
    size = min(MOST_COLUMNS, columns & -columns)
    return (size, columns // size) if size >= SMALLEST_COLUMNS else (power_of_two(columns), 1)


def settings_for(rows: int, columns: int, gated: bool) -> Settings:
    """Rows of the weight and warps of a program: 32 to 128 elements of the weight for a thread (bench/GPU.md)."""
    many = rows * (2 if gated else 1) > 32_768
    if columns <= 1024:
        return Settings(16 if many else 4, 4 if many or gated else 2)
    if columns <= 2048:
        return Settings(8 if many else 4, 8 if many else 4)
    if columns <= 4096:
        return Settings(2 if gated or columns < 4096 else 4, 8 if columns == 4096 else 4)
    return Settings(2, 8)


def _run(
    x_TM: Tensor, norm: Tensor | None, eps: float, weight: Tensor, bias: Tensor | None, out: Tensor, gated: bool, add: bool, settings: Settings | None
) -> None:
    rows, columns = out.shape[1], weight.shape[1]
    chosen = settings or settings_for(rows, columns, gated)
    size, count = pieces(columns)
    launch(
        _gemv, (triton.cdiv(rows, chosen.rows),), x_TM, norm, weight, bias, out, eps,
        N=rows, K=columns, ROWS=len(x_TM), BN=chosen.rows, PIECE=size, PIECES=count,
        NORM=norm is not None, GATED=gated, ADD=add, BIAS=bias is not None, num_warps=chosen.warps, num_stages=1,
    )  # fmt: skip


def norm_linear(
    x_TM: Tensor, norm_M: Tensor, eps: float, weight_NM: Tensor, bias_N: Tensor | None = None, settings: Settings | None = None
) -> Tensor:
    """rms_norm(x) @ weight.T + bias, [T, N]. All contiguous; sums in float32."""
    out = x_TM.new_empty(len(x_TM), len(weight_NM))
    _run(x_TM, norm_M, eps, weight_NM, bias_N, out, False, False, settings)
    return out


def linear_add(residual_TN: Tensor, x_TM: Tensor, weight_NM: Tensor, bias_N: Tensor | None = None, settings: Settings | None = None) -> None:
    """Add x @ weight.T + bias into `residual_TN` in place."""
    _run(x_TM, None, 0.0, weight_NM, bias_N, residual_TN, False, True, settings)


def norm_gate_up(x_TM: Tensor, norm_M: Tensor, eps: float, weight_NM: Tensor, settings: Settings | None = None) -> Tensor:
    """silu(gate) * up, [T, N / 2], of the product of rms_norm(x) with `weight_NM`, whose first half of rows is the gate."""
    out = x_TM.new_empty(len(x_TM), len(weight_NM) // 2)
    _run(x_TM, norm_M, eps, weight_NM, None, out, True, False, settings)
    return out


def norm_logits(x_TM: Tensor, norm_M: Tensor, eps: float, weight_VM: Tensor, settings: Settings | None = None) -> Tensor:
    """rms_norm(x) @ weight.T in float32, [T, V]."""
    out = x_TM.new_empty(len(x_TM), len(weight_VM), dtype=torch.float32)
    _run(x_TM, norm_M, eps, weight_VM, None, out, False, False, settings)
    return out
