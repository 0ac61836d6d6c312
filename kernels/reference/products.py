"""The products of a layer with what surrounds them folded in. A device set has fast kernels for a few rows.

A product is called with [T, M] and gives [T, N]: `Linear`, or on CPU also `QuantLinear`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.reference.mlp import silu_mul
from kernels.reference.norm import rms_norm

Product = Callable[[Tensor], Tensor]


def new_rows(like: Tensor, rows: int, columns: int) -> Tensor:
    """Memory for an input [rows, columns] of a product."""
    return like.new_empty(rows, columns)


def norm_linear(
    x_TM: Tensor, norm_M: Tensor, eps: float, product: Product, dtype: torch.dtype | None = None, ready: Any = None
) -> Tensor:
    """product(rms_norm(x)), [T, N], of type `dtype` (None: as it comes). `ready`: what the set's `linear_add` gave when it made x."""
    y = product(rms_norm(x_TM, norm_M, eps))
    return y if dtype is None else y.to(dtype)


def linear_add(residual_TN: Tensor, x_TM: Tensor, product: Product, norm_N: Tensor | None = None) -> Any:
    """Add product(x) into `residual_TN` in place. `norm_N`: weights of the norm that is applied to the sum next, for which a set may make it ready
    and give that; nothing here."""
    residual_TN.add_(product(x_TM))


def norm_gate_up(x_TM: Tensor, norm_M: Tensor, eps: float, product: Product, ready: Any = None) -> Tensor:
    """silu(gate) * up, [T, N / 2], of product(rms_norm(x)), whose first half of columns is the gate. `ready` as in `norm_linear`."""
    return silu_mul(product(rms_norm(x_TM, norm_M, eps)))
