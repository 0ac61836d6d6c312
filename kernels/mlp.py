"""The gated activation of the MLP in Triton. Twin of kernels.reference.mlp."""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import LOG2E, cdiv, launch, trigger, wait

BLOCK = 1024


@triton.jit
def silu(x: tl.tensor) -> Any:
    """x * sigmoid(x) in float32."""
    return x / (1.0 + tl.exp2(-x * LOG2E))


@triton.jit
def _silu_mul(x_ptr: tl.tensor, out_ptr: tl.tensor, N: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr) -> None:
    trigger(PDL)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < N
    row = tl.program_id(0).to(tl.int64)
    wait(PDL)
    gate = tl.load(x_ptr + row * 2 * N + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * N + N + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * N + column, (silu(gate) * up).to(out_ptr.dtype.element_ty), mask=inside)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for `gate_up` [T, 2N], gate first; gives [T, N]. Computed in float32."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, size)
    launch(_silu_mul, (rows, cdiv(size, BLOCK)), rows, gate_up.contiguous(), out, N=size, BLOCK=BLOCK, num_warps=4)
    return out
