"""The product of a few rows with norm, activation, residual and scaled weights, in plain torch."""

from torch import Tensor

from kernels.reference.mlp import silu_mul
from kernels.reference.norm import rms_norm


def product(
    x_TM: Tensor, norm_M: Tensor | None, eps: float, weight: Tensor, bias: Tensor | None, out_TN: Tensor, gated: bool, add: bool,
    scale: Tensor | None = None,
) -> None:  # fmt: skip
    """Into (or, with `add`, onto) `out_TN` the product of rms_norm(x), or x without a norm, with `weight` [N, M]; [2N, M], gate first, if gated.

    The weight, of any float type, is multiplied by the float32 `scale` of its row, [N] or [2N]. Computed in float32.
    """
    x = x_TM.float() if norm_M is None else rms_norm(x_TM.float(), norm_M.float(), eps)
    y = x @ (weight.float() if scale is None else weight.float() * scale[:, None]).T
    y = silu_mul(y) if gated else y
    y = y if bias is None else y + bias
    out_TN.copy_(out_TN + y if add else y)
