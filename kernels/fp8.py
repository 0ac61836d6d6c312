"""Products of many rows by FP8 weights: the input is quantised row by row (in Triton, with the norm before it) and multiplied by the library in FP8.

Twin of kernels.reference.fp8. Fewer rows take the kernels of kernels.gemv and kernels.skinny, which leave the input as it is.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import ALWAYS, MOST_LATE_ROWS, NEVER, launch, power_of_two, trigger, wait
from kernels.norm import WARP_ELEMENTS, rms_norm
from kernels.reference import fp8 as reference
from kernels.reference.fp8 import E4M3, LARGEST

PADDING = 256
"""The library's product may read so far past the end of scales (pytorch issue 133334)."""
MULTIPLE = 16
"""Of both sides of a weight, for the library's product."""


@triton.jit
def _quantise(
    x_ptr: tl.tensor, norm_ptr: tl.tensor, codes_ptr: tl.tensor, scale_ptr: tl.tensor, eps: tl.tensor,
    N: tl.constexpr, BLOCK: tl.constexpr, NORM: tl.constexpr, LARGEST: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < N
    gamma = tl.load(norm_ptr + column, mask=inside, other=0.0).to(tl.float32) if NORM else tl.full([BLOCK], 1.0, tl.float32)
    wait(PDL)
    trigger(PDL)
    cell = row.to(tl.int64) * N + column
    x = tl.load(x_ptr + cell, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        x = x * tl.rsqrt(tl.sum(x * x, 0) / N + eps) * gamma
    most = tl.max(tl.abs(x), 0)
    scale = tl.where(most == 0, 1.0, most / LARGEST)
    tl.store(codes_ptr + cell, (x / scale).to(codes_ptr.dtype.element_ty), mask=inside)
    tl.store(scale_ptr + row, scale)


def quantise_rows(x_TM: Tensor, norm_M: Tensor | None = None, eps: float = 0.0) -> tuple[Tensor, Tensor]:
    """FP8 codes [T, M] and float32 scales [T] of x, or of rms_norm(x), so that the largest of each row becomes the largest code.

    A row that is not finite gives one whose product is not. The scales have room behind them for `PADDING`.
    """
    rows, size = x_TM.shape
    codes, scale = torch.empty(rows, size, dtype=E4M3, device=x_TM.device), _padded(rows, x_TM.device)
    block = power_of_two(size)
    launch(
        _quantise, (rows,), ALWAYS if rows <= MOST_LATE_ROWS else NEVER, x_TM.contiguous(), norm_M, codes, scale, eps,
        N=size, BLOCK=block, NORM=norm_M is not None, LARGEST=LARGEST, num_warps=min(16, max(1, block // WARP_ELEMENTS)),
    )  # fmt: skip
    return codes, scale


def _padded(size: int, device: torch.device) -> Tensor:
    return torch.empty(-(-size // PADDING) * PADDING, device=device)[:size]


class Fp8Linear(reference.Fp8Linear):
    """As the reference, but with more rows than the own kernels take the input is quantised too."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(weight, bias)
        self.scale = _padded(len(weight), weight.device).copy_(self.scale)
        self._fits = not any(side % MULTIPLE for side in weight.shape)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, M] to [T, N]."""
        return self._product(*quantise_rows(x), x.dtype) if self._fits else super().__call__(x)

    def normed(self, x_TM: Tensor, norm_M: Tensor, eps: float) -> Tensor:
        """The product of rms_norm(x)."""
        return self._product(*quantise_rows(x_TM, norm_M, eps), x_TM.dtype) if self._fits else super().__call__(rms_norm(x_TM, norm_M, eps))

    def _product(self, codes: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
        y = torch._scaled_mm(codes, self.weight.T, scale_a=scale[:, None], scale_b=self.scale[None], out_dtype=dtype, use_fast_accum=True)
        return y if self.bias is None else y.add_(self.bias)
