"""Matrix products of any number of rows in Triton, with one kind of tile: for types, shapes and devices that kernels.invariant.hopper_product leaves.

Twin: `kernels.reference.gemv` without its norm.
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import NEVER, cdiv, launch, trigger, wait
from kernels.mlp import silu

ROWS, COLUMNS = 64, 64
DEEP = 128
"""Bytes of the depth of a tile."""


@triton.jit(do_not_specialize=["rows"])
def _plain(
    x_ptr: tl.tensor, w_ptr: tl.tensor, bias_ptr: tl.tensor, out_ptr: tl.tensor, rows: tl.tensor,
    N: tl.constexpr, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    GATED: tl.constexpr, ADD: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """out [rows, N] of x [rows, K] and the weight [N, K], or [2N, K] when GATED."""
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    weight_row = tl.minimum(column, N - 1).to(tl.int64)
    x_row = tl.minimum(row, rows - 1).to(tl.int64)
    wait(PDL)
    trigger(PDL)
    y = tl.zeros([BM, BN], tl.float32)
    up = tl.zeros([BM, BN], tl.float32)
    for start in tl.range(0, K, BK):
        k = start + tl.arange(0, BK)
        there = (k < K)[None, :]
        w_cell = weight_row[:, None] * K + k[None, :]
        x = tl.load(x_ptr + x_row[:, None] * K + k[None, :], mask=there, other=0.0)
        y = tl.dot(x, tl.trans(tl.load(w_ptr + w_cell, mask=there, other=0.0)), y, input_precision="ieee")
        if GATED:
            up = tl.dot(x, tl.trans(tl.load(w_ptr + N * K + w_cell, mask=there, other=0.0)), up, input_precision="ieee")
    if GATED:
        y = silu(y) * up
    target = out_ptr + row.to(tl.int64)[:, None] * N + column[None, :]
    inside = (row < rows)[:, None] & (column < N)[None, :]
    if BIAS:
        y += tl.load(bias_ptr + column, mask=column < N, other=0.0).to(tl.float32)[None, :]
    if ADD:
        y += tl.load(target, mask=inside, other=0.0).to(tl.float32)
    tl.store(target, y.to(out_ptr.dtype.element_ty), mask=inside)


def product(x_TM: Tensor, weight: Tensor, bias: Tensor | None, out_TN: Tensor, gated: bool = False, add: bool = False) -> None:
    """As kernels.invariant.hopper_product.product, for any float type."""
    (rows, depth), columns = x_TM.shape, out_TN.shape[1]
    launch(
        _plain, (cdiv(columns, COLUMNS), cdiv(rows, ROWS)), NEVER, x_TM, weight, bias, out_TN, rows,
        N=columns, K=depth, BM=ROWS, BN=COLUMNS, BK=DEEP // x_TM.element_size(), GATED=gated, ADD=add, BIAS=bias is not None,
        num_warps=4, num_stages=3,
    )  # fmt: skip
