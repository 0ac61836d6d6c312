"""Which tokens may come next, as bits: what a mask leaves out gets a logit so low that it is not chosen.

Added, not set, as in kernels.reference.bias, so that a logit that is not a number stays so; and lower than anything there, for where everything is
banned that a mask allows, one of its tokens is chosen all the same.
"""

import numpy as np
import torch
from torch import Tensor

MASKED = -1e30


def apply_mask(logits_RV: Tensor, row_N: Tensor, words_NW: Tensor) -> None:
    """Change `logits_RV` in place: token i may come next in batch row row_N[n] (no row twice) when bit i % 32 of word i // 32 of words_NW[n] is set.

    int32 both; W words hold at least V bits. Row by row, for what is in between of one row stays in the cache.
    """
    left_out_NB = ~words_NW.numpy().view(np.uint8)
    for row, bytes_B in zip(row_N.tolist(), left_out_NB, strict=True):
        out_V = np.unpackbits(bytes_B, bitorder="little", count=logits_RV.shape[1])
        logits_RV[row].add_(torch.from_numpy(out_V).to(logits_RV.dtype), alpha=MASKED)
