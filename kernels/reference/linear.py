"""Matrix products with resident weights."""

import torch
from torch import Tensor
from torch.nn import functional

PACK_ROWS = 8
"""Rows of input the packed layout is tuned for; it is used for any number."""
FAST_ROWS = 4
"""With fewer rows than this oneDNN takes a slower kernel, so callers do well to pad to it."""


def _can_pack(weight: Tensor) -> bool:
    return (
        weight.device.type == "cpu"
        and weight.dtype in (torch.float32, torch.bfloat16)
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


class Linear:
    """y = x @ weight.T + bias with `weight` [N, M], packed for oneDNN where that exists (about twice as fast as F.linear at one row)."""

    scale: Tensor | None = None
    """Of the rows of `weight`, where they are quantised (kernels.reference.fp8)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.bias = bias
        self.packed = _can_pack(weight)
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACK_ROWS) if self.packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """[T, M] to [T, N]."""
        if self.packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return y
        return functional.linear(x, self.weight, self.bias)
