"""How the sampling kernels read logits: a piece of one row with penalties and temperature applied, as kernels.reference.sampling does it."""

from typing import Any

import triton
import triton.language as tl

from kernels.reference import sampling as reference

GREEDY_BELOW = tl.constexpr(reference.GREEDY_BELOW)
LARGEST_LOGIT = tl.constexpr(reference.LARGEST_LOGIT)


@triton.jit
def penalise(
    x: tl.tensor,
    at: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
    counts_ptr: tl.tensor,
    seen_ptr: tl.tensor,
    penalties_ptr: tl.tensor,
    V: tl.constexpr,
) -> Any:
    """`x` with the penalties of row `at` of counts and seen [N, V]; `penalties_ptr` [N, 3]: repetition, presence, frequency."""
    cell = at.to(tl.int64) * V + column
    counts = tl.load(counts_ptr + cell, mask=inside, other=0.0).to(tl.float32)
    seen = tl.load(seen_ptr + cell, mask=inside, other=0) != 0
    repetition = tl.load(penalties_ptr + at * 3)
    presence = tl.load(penalties_ptr + at * 3 + 1)
    frequency = tl.load(penalties_ptr + at * 3 + 2)
    repeated = tl.where(x > 0, tl.div_rn(x, tl.zeros_like(x) + repetition), x * repetition)
    x = tl.where(seen, repeated, x) - frequency * counts - presence * (counts > 0).to(tl.float32)
    return tl.minimum(tl.maximum(x, -LARGEST_LOGIT), LARGEST_LOGIT)


@triton.jit
def read(
    logits_ptr: tl.tensor, row: tl.tensor, column: tl.tensor, temperature: tl.tensor, at: tl.tensor, counts_ptr: tl.tensor, seen_ptr: tl.tensor,
    penalties_ptr: tl.tensor,
    V: tl.constexpr, PENALTIES: tl.constexpr,
) -> Any:  # fmt: skip
    """Logits of `row` as they came and after penalties (of row `at`, none when negative) and temperature; minus infinity past the vocabulary."""
    inside = column < V
    raw = tl.load(logits_ptr + row * V + column, mask=inside, other=float("-inf")).to(tl.float32)
    x = raw
    if PENALTIES and at >= 0:
        x = tl.where(inside, penalise(x, at, column, inside, counts_ptr, seen_ptr, penalties_ptr, V), float("-inf"))
    if temperature >= GREEDY_BELOW:
        x = x * tl.div_rn(1.0, temperature)
    return raw, x


@triton.jit
def all_finite(mass: tl.tensor) -> Any:
    """Whether no chunk's probability mass [N] is NaN, which is how a scan says that one of its logits is not a finite number."""
    return tl.min((mass == mass).to(tl.int32), 0) == 1
