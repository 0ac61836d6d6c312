"""RMSNorm in Triton, alone and with the residual addition before it; one program a row. Twin of kernels.reference.norm."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import ALWAYS, MOST_LATE_ROWS, NEVER, launch, power_of_two, trigger, wait

WARP_ELEMENTS = 512
"""Elements of a row for one warp."""


@triton.jit
def _norm(
    x_ptr: tl.tensor,
    add_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    out_ptr: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    PDL: tl.constexpr,
) -> None:
    column = tl.arange(0, BLOCK)
    inside = column < N
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    wait(PDL)
    trigger(PDL)
    cell = tl.program_id(0).to(tl.int64) * N + column
    x = tl.load(x_ptr + cell, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        total = (x + tl.load(add_ptr + cell, mask=inside, other=0.0).to(tl.float32)).to(x_ptr.dtype.element_ty)
        tl.store(x_ptr + cell, total, mask=inside)
        x = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / N + eps)
    tl.store(out_ptr + cell, (x * scale * weight).to(out_ptr.dtype.element_ty), mask=inside)


def _run(x: Tensor, add: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    size = weight.shape[0]
    block = power_of_two(size)
    out = torch.empty_like(x)
    warps = min(16, max(1, block // WARP_ELEMENTS))
    rows = x.numel() // size
    when = ALWAYS if rows <= MOST_LATE_ROWS else NEVER
    launch(_norm, (rows,), when, x, add, weight, out, eps, N=size, BLOCK=block, ADD=add is not None, num_warps=warps)
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, whose size is that of `weight`. Sums in float32."""
    return _run(x.contiguous(), None, weight, eps)


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` into the contiguous `residual` in place and give the norm of the sum (as rounded to the residual's type)."""
    return _run(residual, x.contiguous(), weight, eps)
