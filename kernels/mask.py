"""Which tokens may come next, in Triton. Twin of kernels.reference.mask."""

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import NEVER, cdiv, launch, trigger, wait
from kernels.reference import mask as reference

BLOCK = 4096
MASKED = tl.constexpr(reference.MASKED)


@triton.jit(do_not_specialize_on_alignment=["row_ptr", "words_ptr"])
def _mask(
    logits_ptr: tl.tensor, row_ptr: tl.tensor, words_ptr: tl.tensor, V: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
) -> None:
    """One program for a row of the mask and BLOCK tokens. Only tokens that are left out are written."""
    trigger(PDL)
    place = tl.program_id(0).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = token < V
    wait(PDL)
    row = tl.load(row_ptr + place).to(tl.int64)
    words = tl.load(words_ptr + place * W + token // 32, mask=inside, other=-1)
    out = inside & (((words >> (token % 32)) & 1) == 0)
    at = logits_ptr + row * V + token
    value = tl.load(at, mask=out, other=0.0)
    tl.store(at, (value.to(tl.float32) + MASKED).to(value.dtype), mask=out)


def apply_mask(logits_RV: Tensor, row_N: Tensor, words_NW: Tensor) -> None:
    """Change the contiguous `logits_RV` (any float type with the range of float32) in place, as the reference does."""
    vocab = logits_RV.shape[1]
    rows, words = words_NW.shape
    launch(_mask, (rows, cdiv(vocab, BLOCK)), NEVER, logits_RV, row_N, words_NW, V=vocab, W=words, BLOCK=BLOCK, num_warps=4)
