"""FP8 (E4M3; Micikevicius et al., 2022, "FP8 formats for deep learning"): saturating conversion, and products whose weights have 8 bits.

A code is worth itself times the scale of its row. E4M3 has 3 bits of mantissa, goes up to 448 and knows NaN but no infinity.
"""

import functools

import torch
from torch import Tensor
from torch.nn import functional

from kernels.reference.linear import Linear

E4M3 = torch.float8_e4m3fn
LARGEST = 448.0
ROWS = 4096
"""Rows of a weight that are quantised at once, so that little is in float32 at any time."""


def converted(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`x` as `dtype`. To FP8 it saturates, as the conversion of a GPU does: what is too large becomes the largest; NaN stays NaN."""
    return x.clamp(-LARGEST, LARGEST).to(dtype) if dtype == E4M3 else x.to(dtype)


@functools.cache
def _values(dtype: torch.dtype) -> Tensor:
    """What each of the 256 codes is worth."""
    return torch.arange(256, dtype=torch.uint8).view(E4M3).to(dtype)


def widen(x: Tensor, out: Tensor) -> None:
    """Put values of a narrower type into `out`, both contiguous. FP8 by table on a CPU, where torch's own conversion is several times slower."""
    if x.dtype == E4M3 and x.device.type == "cpu":
        torch.index_select(_values(out.dtype), 0, bits(x).flatten().int(), out=out.view(-1))
    else:
        out.copy_(x)


def bits(x: Tensor) -> Tensor:
    """FP8 values as bytes, for torch's operations that only move values and do not know the type; others as they are."""
    return x.view(torch.uint8) if x.dtype == E4M3 else x


def quantise_rows(x_TM: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [T, M] and float32 scales [T], so that the largest of each row becomes the largest code. A row that is not finite gives NaN."""
    wide = x_TM.float()
    most = wide.abs().amax(1)
    scale = torch.where(most == 0, 1.0, most / LARGEST)
    return converted(wide / scale[:, None], E4M3), scale


class Fp8Linear(Linear):
    """y = x @ (weight * scale).T + bias with the rows of `weight` [N, M] quantised, each with its `scale` [N]."""

    scale: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        parts = [quantise_rows(part) for part in weight.split(ROWS)]
        super().__init__(torch.cat([bits(codes) for codes, _ in parts]).view(E4M3), bias)
        self.scale = torch.cat([scale for _, scale in parts])

    def __call__(self, x: Tensor) -> Tensor:
        """[T, M] to [T, N]; the input keeps its type; summed in float32."""
        y = functional.linear(x.float(), self.weight.float()) * self.scale
        return (y if self.bias is None else y + self.bias).to(x.dtype)
