"""Matrix products of 2 to 64 rows on the tensor cores, in Triton, with the activation or the residual folded in.

Still bound by reading the weights. Products with few columns are also cut along the rows of the weight (split-K): the last program to arrive adds
the parts up, in order, so the result does not depend on who is last.
"""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import ALWAYS, cdiv, launch, power_of_two, trigger, wait
from kernels.mlp import silu

MOST_ROWS = 64
SCRATCH_PARTS = 1 << 22
SCRATCH_COUNTERS = 4096


class Settings(NamedTuple):
    """Tuning: columns and depth of a tile, warps, pipeline stages, parts of the depth."""

    columns: int = 32
    depth: int = 128
    warps: int = 4
    stages: int = 4
    parts: int = 1


@triton.jit(do_not_specialize=["rows"])
def _skinny(
    x_ptr: tl.tensor, w_ptr: tl.tensor, bias_ptr: tl.tensor, out_ptr: tl.tensor, parts_ptr: tl.tensor, counter_ptr: tl.tensor, rows: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr, LENGTH: tl.constexpr,
    GATED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """out [rows, N] of x [rows, K] and the weight [N, K], or [2N, K] when GATED; each part goes over LENGTH of K."""
    tile = tl.program_id(0)
    part = tl.program_id(1)
    row = tl.arange(0, BM)
    column = tile * BN + tl.arange(0, BN)
    weight_row = tl.minimum(column, N - 1).to(tl.int64)
    begin = part * LENGTH
    wait(PDL)
    trigger(PDL)
    target = out_ptr + row[:, None] * N + column[None, :]
    inside = (row < rows)[:, None] & (column < N)[None, :]
    more = tl.zeros([BM, BN], tl.float32)
    if ADD:
        more += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        more += tl.load(bias_ptr + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    y = tl.zeros([BM, BN], tl.float32)
    up = tl.zeros([BM, BN], tl.float32)
    for start in tl.range(begin, min(begin + LENGTH, K), BK):
        k = start + tl.arange(0, BK)
        there = (k < K)[None, :]
        w_cell = weight_row[:, None] * K + k[None, :]
        x = tl.load(x_ptr + row[:, None] * K + k[None, :], mask=(row < rows)[:, None] & there, other=0.0)
        w = tl.load(w_ptr + w_cell) if K % BK == 0 else tl.load(w_ptr + w_cell, mask=there, other=0.0)
        y = tl.dot(x, tl.trans(w), y, input_precision="ieee")
        if GATED:
            up_ptr = w_ptr + N * K + w_cell
            w = tl.load(up_ptr) if K % BK == 0 else tl.load(up_ptr, mask=there, other=0.0)
            up = tl.dot(x, tl.trans(w), up, input_precision="ieee")
    if PARTS == 1:
        if GATED:
            y = silu(y) * up
        tl.store(target, (y + more).to(out_ptr.dtype.element_ty), mask=inside)
    else:
        cell = (tile * PARTS * BM + row[:, None]) * BN + tl.arange(0, BN)[None, :]
        tl.store(parts_ptr + part * BM * BN + cell, y)
        tl.debug_barrier()
        if tl.atomic_add(counter_ptr + tile, 1, sem="acq_rel") == PARTS - 1:
            y = tl.zeros([BM, BN], tl.float32)
            for other in tl.static_range(PARTS):
                y += tl.load(parts_ptr + other * BM * BN + cell, cache_modifier=".cg")
            tl.store(target, (y + more).to(out_ptr.dtype.element_ty), mask=inside)
            tl.store(counter_ptr + tile, 0)


@functools.cache
def scratch_on(device: torch.device) -> tuple[Tensor, Tensor]:
    """Memory for parts and counters (which every launch leaves at zero), one for each device: launches on one stream, of `kernels.narrow` too, do
    not overlap.

    The first call must not be part of a captured graph, whose memory it would be.
    """
    return torch.empty(SCRATCH_PARTS, device=device), torch.zeros(SCRATCH_COUNTERS, dtype=torch.int32, device=device)


def settings_for(rows: int, columns: int, depth: int, gated: bool) -> Settings:
    """The settings measured best (bench/GPU.md)."""
    if gated:
        return Settings(stages=3)
    if columns > 16_384:
        return Settings(columns=64, stages=3)
    if columns > 4096 or (columns > 2048 and depth <= 2048):
        return Settings()
    if rows > 16 and columns <= 2048 and depth <= 4096:
        return Settings(depth=256, stages=3, parts=4 if columns <= 1024 else 2)
    return Settings(columns=64, stages=3, parts=4) if depth > 8192 else Settings(parts=2 if columns > 2048 else 4)


def product(
    x_TM: Tensor, weight: Tensor, bias: Tensor | None, out_TN: Tensor, gated: bool = False, add: bool = False, settings: Settings | None = None
) -> None:
    """Into (or, with `add`, onto) `out_TN` the product of x with `weight` [N, M]; with [2N, M], gate first, if gated. All contiguous."""
    (rows, depth), columns = x_TM.shape, out_TN.shape[1]
    chosen = settings or settings_for(rows, columns, depth, gated)
    parts = 1 if gated else chosen.parts
    length = cdiv(depth, parts * chosen.depth) * chosen.depth
    if parts > 1 and cdiv(columns, chosen.columns) * parts * max(16, power_of_two(rows)) * chosen.columns > SCRATCH_PARTS:
        raise ValueError(f"{parts} parts of [{rows}, {columns}] do not fit the scratch memory")
    scratch, counters = scratch_on(x_TM.device) if parts > 1 else (None, None)
    launch(
        _skinny, (cdiv(columns, chosen.columns), parts), ALWAYS, x_TM, weight, bias, out_TN, scratch, counters, rows,
        N=columns, K=depth, BM=max(16, power_of_two(rows)), BN=chosen.columns, BK=chosen.depth, PARTS=parts, LENGTH=length,
        GATED=gated, ADD=add, BIAS=bias is not None,
        num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
