"""Which tokens may come next, as bits: what a mask leaves out gets a logit so low that it is not chosen.

Added, not set, as in kernels.reference.bias, so that a logit that is not a number stays so; and lower than anything there, for where everything is
banned that a mask allows, one of its tokens is chosen all the same.
"""

import torch
from torch import Tensor

MASKED = -1e30


def apply_mask(logits_RV: Tensor, row_N: Tensor, words_NW: Tensor) -> None:
    """Change `logits_RV` in place: token i may come next in batch row row_N[n] (no row twice) when bit i % 32 of word i // 32 of words_NW[n] is set.

    int32 both; W words hold at least V bits.
    """
    bits = (words_NW[:, :, None] >> torch.arange(32, dtype=torch.int32, device=words_NW.device)) & 1
    allowed_NV = bits.flatten(1)[:, : logits_RV.shape[1]] != 0
    logits_RV[row_N.long()] += torch.where(allowed_NV, 0.0, MASKED).to(logits_RV.dtype)
