"""The products of a layer: own kernels for up to 64 rows, or 256 where they are faster, else the library's. Twin of kernels.reference.products."""

import torch
from torch import Tensor

from kernels import few_rows, fp8, gemv, narrow, ring, skinny
from kernels.fp8 import Fp8Linear
from kernels.mlp import silu_mul
from kernels.norm import rms_norm
from kernels.reference.linear import Linear
from kernels.ring import Scaled, new_rows

FEW = {torch.bfloat16: skinny.MOST_ROWS, torch.float16: skinny.MOST_ROWS, torch.float32: 1}
"""Most rows for the own kernels; float32 has no tensor cores that are exact enough."""

PRECISE_ROWS = 8
"""Most rows whose results are of a wider type where that is asked for: for more, writing and reading them takes too long."""

DEEPEST_OF_TWO, WIDEST_OF_TWO = 3072, 8192
"""Products up to this size are faster without tensor cores for two rows too."""


def _few(x_TM: Tensor, norm_M: Tensor | None, eps: float, linear: Linear, out_TN: Tensor, gated: bool, add: bool) -> None:
    """For one row, and a few where the weight is small, the norm is part of the product; else a kernel of its own costs less than every program's
    norm of all rows."""
    rows, depth = x_TM.shape
    if rows == 1 or (rows == 2 and depth <= DEEPEST_OF_TWO and out_TN.shape[1] <= WIDEST_OF_TWO):
        gemv.product(x_TM, norm_M, eps, linear.weight, linear.bias, out_TN, gated, add, scale=linear.scale)
        return
    if linear.scale is not None:
        narrow.product(*fp8.quantise_rows(x_TM, norm_M, eps), linear.weight, linear.scale, linear.bias, out_TN, gated, add)
        return
    if x_TM.element_size() == 2 and few_rows.wins(rows, out_TN.shape[1], depth, gated):
        few_rows.product(x_TM, norm_M, eps, linear.weight, linear.bias, out_TN, gated, add)
        return
    x = x_TM if norm_M is None else rms_norm(x_TM, norm_M, eps)
    skinny.product(x, linear.weight, linear.bias, out_TN, gated, add)


def _many(x_TM: Tensor, norm_M: Tensor, eps: float, product: Linear) -> Tensor:
    """The library's product of rms_norm(x)."""
    return product.normed(x_TM, norm_M, eps) if isinstance(product, Fp8Linear) else product(rms_norm(x_TM, norm_M, eps))


def _through_ring(x_TM: Tensor, linear: Linear, columns: int) -> bool:
    return linear.scale is None and ring.fits(x_TM, linear.weight) and ring.wins(len(x_TM), columns, x_TM.shape[1])


def norm_linear(
    x_TM: Tensor, norm_M: Tensor, eps: float, product: Linear, dtype: torch.dtype | None = None, ready: Scaled | None = None
) -> Tensor:
    """rms_norm(x) @ weight.T + bias, [T, N]. Contiguous input; sums in float32. `ready`: what `linear_add` gave when it made x.

    Of type `dtype` where an own kernel computes few rows (None: that of x); others are rounded to the type of x and stay so.
    """
    rows, columns = len(x_TM), len(product.weight)
    if ready is not None and _through_ring(x_TM, product, columns):
        out = x_TM.new_empty(rows, columns)
        ring.product(ready.x, product.weight, product.bias, out, squares=ready.squares, eps=eps)
        return out
    if rows > FEW[x_TM.dtype]:
        return _many(x_TM, norm_M, eps, product)
    out = x_TM.new_empty(rows, columns, dtype=dtype if rows <= PRECISE_ROWS else None)
    _few(x_TM, norm_M, eps, product, out, False, False)
    return out


def linear_add(residual_TN: Tensor, x_TM: Tensor, product: Linear, norm_N: Tensor | None = None) -> Scaled | None:
    """Add x @ weight.T + bias into the contiguous `residual_TN` in place.

    With `norm_N`, the weights of the norm that is applied to the sum next, this may give the sum made ready for it. Only steps launched from a
    graph do well to pass it: these launches cost the host more.
    """
    if norm_N is not None and _through_ring(x_TM, product, len(product.weight)):
        return ring.product(x_TM, product.weight, product.bias, residual_TN, add=True, norm_N=norm_N)
    if len(x_TM) <= FEW[x_TM.dtype]:
        _few(x_TM, None, 0.0, product, residual_TN, False, True)
    elif product.bias is None and product.scale is None:
        residual_TN.addmm_(x_TM, product.weight.T)
    else:
        residual_TN.add_(product(x_TM))
    return None


def norm_gate_up(x_TM: Tensor, norm_M: Tensor, eps: float, product: Linear, ready: Scaled | None = None) -> Tensor:
    """silu(gate) * up, [T, N / 2], of the product of rms_norm(x), whose first half of columns is the gate. `ready` as in `norm_linear`."""
    rows, columns = len(x_TM), len(product.weight) // 2
    if ready is not None and product.bias is None and _through_ring(x_TM, product, columns):
        out = new_rows(x_TM, rows, columns)
        ring.product(ready.x, product.weight, None, out, gated=True, squares=ready.squares, eps=eps)
        return out
    if rows > FEW[x_TM.dtype] or product.bias is not None:
        return silu_mul(_many(x_TM, norm_M, eps, product))
    out = x_TM.new_empty(rows, columns)
    _few(x_TM, norm_M, eps, product, out, True, False)
    return out
