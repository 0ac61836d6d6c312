"""The products of a layer, the same kernel for any number of rows. Twin of kernels.reference.products."""

from typing import Any

import torch
from torch import Tensor

from kernels.invariant import hopper_product, plain_product
from kernels.mlp import silu_mul
from kernels.norm import rms_norm
from kernels.reference.linear import Linear


def product(x_TM: Tensor, linear: Linear, out_TN: Tensor, gated: bool = False, add: bool = False) -> None:
    """Into (or, with `add`, onto) `out_TN` the product of x and the weight of `linear`, with its bias; gate first, if gated, then without a bias."""
    if linear.scale is not None:
        raise ValueError("quantised weights have no kernels of one order; leave out --weights fp8 or --deterministic")
    if hopper_product.fits(x_TM, linear.weight):
        hopper_product.product(x_TM, linear.weight, linear.bias, out_TN, gated, add)
    else:
        plain_product.product(x_TM, linear.weight, linear.bias, out_TN, gated, add)


def norm_linear(x_TM: Tensor, norm_M: Tensor, eps: float, linear: Linear, dtype: torch.dtype | None = None, ready: Any = None) -> Tensor:
    """rms_norm(x) @ weight.T + bias, [T, N], of type `dtype` (None: that of x)."""
    out = x_TM.new_empty(len(x_TM), len(linear.weight), dtype=dtype)
    product(rms_norm(x_TM, norm_M, eps), linear, out)
    return out


def linear_add(residual_TN: Tensor, x_TM: Tensor, linear: Linear, norm_N: Tensor | None = None) -> None:
    """Add x @ weight.T + bias into the contiguous `residual_TN` in place."""
    product(x_TM, linear, residual_TN, add=True)


def norm_gate_up(x_TM: Tensor, norm_M: Tensor, eps: float, linear: Linear, ready: Any = None) -> Tensor:
    """silu(gate) * up, [T, N / 2], of the product of rms_norm(x), whose first half of columns is the gate."""
    if linear.bias is not None:
        return silu_mul(norm_linear(x_TM, norm_M, eps, linear))
    out = x_TM.new_empty(len(x_TM), len(linear.weight) // 2)
    product(rms_norm(x_TM, norm_M, eps), linear, out, gated=True)
    return out
