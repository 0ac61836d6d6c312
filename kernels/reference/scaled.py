"""The product with a weight of few bits whose rows have factors of their own."""

import torch
from torch import Tensor
from torch.nn import functional


def scaled_linear(x_TM: Tensor, weight_NM: Tensor, scale_N: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ (scale * weight).T + bias, [T, N] of the type of x; `weight_NM` of any type (float8_e4m3fn), the rest summed in float32."""
    wide = functional.linear(x_TM.to(torch.float32), weight_NM.to(torch.float32)) * scale_N
    return (wide if bias is None else wide + bias).to(x_TM.dtype)
