"""Which tokens may come next, as bits: what a mask leaves out gets a logit so low that it is not chosen.

Added, not set, as in kernels.reference.bias, so that a logit that is not a number stays so; and lower than anything there, for where everything is
banned that a mask allows, one of its tokens is chosen all the same.
"""

import functools

import torch
from torch import Tensor

MASKED = -1e30


@functools.cache
def _left_out() -> Tensor:
    """[256, 8] bool: of each byte, which of its bits, the lowest first, are not set."""
    return (torch.arange(256)[:, None] >> torch.arange(8)) & 1 == 0


def apply_mask(logits_RV: Tensor, row_N: Tensor, words_NW: Tensor) -> None:
    """Change `logits_RV` in place: token i may come next in batch row row_N[n] (no row twice) when bit i % 32 of word i // 32 of words_NW[n] is set.

    int32 both; W words hold at least V bits.
    """
    out_NV = _left_out()[words_NW.contiguous().view(torch.uint8).int()].flatten(1)[:, : logits_RV.shape[1]]
    for row, out_V in zip(row_N.tolist(), out_NV, strict=True):
        logits_RV[row].add_(out_V.to(logits_RV.dtype), alpha=MASKED)
