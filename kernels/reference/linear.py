"""Matrix products with resident weights."""

import torch
from torch import Tensor
from torch.nn import functional

PACK_ROWS = 8
"""Rows of input the packed layout is tuned for; it is used for any number."""
FAST_ROWS = 4
"""With fewer rows than this oneDNN takes a slower kernel, so callers do well to pad to it."""


_STRIDES = ((8, 1), (32, 4), (128, 8))
"""Up to so many rows, sizes are so far apart."""
_STRIDE = 16


def padded(rows: int) -> int:
    """The number of rows that `rows` are computed as. For each number that it has not met oneDNN compiles code, half a megabyte for one matrix, and
    keeps it for ever."""
    stride = next((stride for most, stride in _STRIDES if rows <= most), _STRIDE)
    return -(-rows // stride) * stride


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
            rows = x.shape[0]
            more = padded(rows) - rows
            y: Tensor = torch.ops.mkldnn._linear_pointwise(functional.pad(x, (0, 0, 0, more)) if more else x, self.weight, self.bias, "none", [], "")
            return y[:rows]
        return functional.linear(x, self.weight, self.bias)
