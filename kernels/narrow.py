"""Products of a few quantised rows by FP8 weights on the FP8 tensor cores, in Triton, with the activation or the residual folded in.

The weight is the left operand (the tensor cores want 64 rows there, the input may have fewer), so that nothing is widened on its way to them.
Bound by reading the weights; products with few rows of the weight are also cut along them (split-K): the last program to arrive adds the
parts up, in order. Twin: kernels.reference.narrow.
"""

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import ALWAYS, cdiv, launch, power_of_two, trigger, wait
from kernels.mlp import silu
from kernels.skinny import SCRATCH_COUNTERS, SCRATCH_PARTS, scratch_on

MULTIPROCESSORS = 132
"""Of an H200."""
FEW = 64
"""Programs from which a product is not cut into more parts."""
DEEP = 4096


class Settings(NamedTuple):
    """Tuning: rows of the weight and depth of a tile, warps, pipeline stages, parts of the depth."""

    columns: int = 64
    depth: int = 128
    warps: int = 4
    stages: int = 4
    parts: int = 1


@triton.jit(do_not_specialize=["rows"])
def _narrow(
    x_ptr: tl.tensor, x_scale_ptr: tl.tensor, w_ptr: tl.tensor, w_scale_ptr: tl.tensor, bias_ptr: tl.tensor, out_ptr: tl.tensor,
    parts_ptr: tl.tensor, counter_ptr: tl.tensor, rows: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr, LENGTH: tl.constexpr,
    GATED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """out [rows, N] of x [rows, K] and the weight [N, K]; when GATED [2N, K], of which a tile is BN / 2 rows of the gate and as many of up."""
    tile = tl.program_id(0)
    part = tl.program_id(1)
    WIDE: tl.constexpr = BN // 2 if GATED else BN
    member = tl.arange(0, BN)
    column = tl.minimum(tile * WIDE + member % WIDE, N - 1) + (member // WIDE) * N
    row = tl.arange(0, BM)
    k = tl.arange(0, BK)
    begin = part * LENGTH
    wait(PDL)
    trigger(PDL)
    w_cell = w_ptr + column.to(tl.int64)[:, None] * K + k[None, :]
    x_cell = x_ptr + row[:, None] * K + k[None, :]
    y = tl.zeros([BN, BM], tl.float32)
    for start in tl.range(begin, min(begin + LENGTH, K), BK):
        x = tl.load(x_cell + start, mask=(row < rows)[:, None] & (start + k < K)[None, :], other=0.0)
        w = tl.load(w_cell + start) if K % BK == 0 else tl.load(w_cell + start, mask=(start + k < K)[None, :], other=0.0)
        y = tl.dot(w, tl.trans(x), y)
    last = True
    if PARTS > 1:
        cell = ((tile * PARTS) * BN + member[:, None]) * BM + row[None, :]
        tl.store(parts_ptr + part * BN * BM + cell, y)
        tl.debug_barrier()
        last = tl.atomic_add(counter_ptr + tile, 1, sem="acq_rel") == PARTS - 1
        if last:
            y = tl.zeros([BN, BM], tl.float32)
            for other in tl.static_range(PARTS):
                y += tl.load(parts_ptr + other * BN * BM + cell, cache_modifier=".cg")
            tl.store(counter_ptr + tile, 0)
    if last:
        scaled = y * tl.load(w_scale_ptr + column)[:, None] * tl.load(x_scale_ptr + row, mask=row < rows, other=0.0)[None, :]
        if GATED:
            gate, up = tl.split(tl.permute(tl.reshape(scaled, [2, WIDE, BM]), [1, 2, 0]))
            found = silu(gate) * up
        else:
            found = scaled
        place = tile * WIDE + tl.arange(0, WIDE)
        target = out_ptr + row[None, :] * N + place[:, None]
        inside = (place < N)[:, None] & (row < rows)[None, :]
        if ADD:
            found += tl.load(target, mask=inside, other=0.0).to(tl.float32)
        if BIAS:
            found += tl.load(bias_ptr + place, mask=place < N, other=0.0).to(tl.float32)[:, None]
        tl.store(target, found.to(out_ptr.dtype.element_ty), mask=inside)


def settings_for(columns: int, depth: int, gated: bool) -> Settings:
    """As measured best (bench/GPU.md): parts cost more than idle multiprocessors, but for deep weights."""
    tiles, deep = cdiv(columns, 32 if gated else 64), depth >= DEEP
    parts = 1
    while tiles * parts * 2 <= (MULTIPROCESSORS if deep else FEW) and depth >= 4 * parts * 128:
        parts *= 2
    if tiles > MULTIPROCESSORS:
        return Settings(parts=parts)
    return Settings(depth=256, parts=parts) if deep else Settings(stages=6 if gated else 4, parts=parts)


def product(
    x_TM: Tensor, x_scale_T: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, out_TN: Tensor, gated: bool = False, add: bool = False,
    settings: Settings | None = None,
) -> None:  # fmt: skip
    """Into (or, with `add`, onto) `out_TN` the product of FP8 codes x with FP8 `weight` [N, M]; with [2N, M], gate first, if gated.

    Rows of both count their float32 `x_scale_T` and `scale` times. All contiguous; a gated product has no bias.
    """
    (rows, depth), columns = x_TM.shape, out_TN.shape[1]
    chosen = settings or settings_for(columns, depth, gated)
    wide = chosen.columns // 2 if gated else chosen.columns
    tiles, block = cdiv(columns, wide), max(16, power_of_two(rows))
    if chosen.parts > 1 and (tiles * chosen.parts * chosen.columns * block > SCRATCH_PARTS or tiles > SCRATCH_COUNTERS):
        raise ValueError(f"{chosen.parts} parts of [{rows}, {columns}] do not fit the scratch memory")
    scratch, counters = scratch_on(x_TM.device) if chosen.parts > 1 else (None, None)
    launch(
        _narrow, (tiles, chosen.parts), ALWAYS, x_TM, x_scale_T, weight, scale, bias, out_TN, scratch, counters, rows,
        N=columns, K=depth, BM=block, BN=chosen.columns, BK=chosen.depth, PARTS=chosen.parts,
        LENGTH=cdiv(depth, chosen.parts * chosen.depth) * chosen.depth, GATED=gated, ADD=add, BIAS=bias is not None,
        num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
