"""The product of quantised rows with FP8 weights in plain torch."""

from torch import Tensor

from kernels.reference.mlp import silu_mul


def product(
    x_TM: Tensor, x_scale_T: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, out_TN: Tensor, gated: bool = False, add: bool = False
) -> None:
    """Into (or, with `add`, onto) `out_TN` the product of FP8 codes x with FP8 `weight` [N, M]; with [2N, M], gate first, if gated.

    Rows of both count their float32 `x_scale_T` and `scale` times. Computed in float32.
    """
    y = (x_TM.float() * x_scale_T[:, None]) @ (weight.float() * scale[:, None]).T
    y = silu_mul(y) if gated else y
    y = y if bias is None else y + bias
    out_TN.copy_(out_TN + y if add else y)
