"""Where top-k, top-p and min-p cut a row: the smallest logit that is kept, exact for any k and p, without a sort.

Whether a value v is kept depends only on how much lies at or above it (a count for top-k, a probability for top-p), which falls as v rises. So
the border is found by narrowing a bracket: each pass over the row measures PIVOTS values between the bracket's ends. Brackets are in the
order of float32 bit patterns, so the search ends even where values are dense, and shrink to the values that occur, so ties end it early.
"""

from typing import Any

import triton
import triton.language as tl

from kernels.launch import trigger, wait
from kernels.logits import GREEDY_BELOW, read

PIVOTS = tl.constexpr(8)
EVEN_ROUNDS = tl.constexpr(5)
"""Passes whose pivots are evenly spaced by value, which is quick for smooth distributions; later ones halve what is left of the bit patterns."""


@triton.jit
def _key(x: tl.tensor) -> Any:
    """int32 in the order of the float32 `x`."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key: tl.tensor) -> Any:
    """The float32 of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _pivots(low: tl.tensor, high: tl.tensor, rounds: tl.tensor) -> Any:
    """Keys [PIVOTS] from `low`, the others above it and at most `high`."""
    step = tl.arange(0, PIVOTS)
    low_x, high_x = _value(low), _value(high)
    even = _key(low_x + (high_x - low_x) * (step.to(tl.float32) / (PIVOTS - 1)))
    halving = (low + (high.to(tl.int64) - low) * step // (PIVOTS - 1)).to(tl.int32)
    key = tl.where(rounds < EVEN_ROUNDS, even, halving)
    return tl.where(step == 0, low, tl.minimum(tl.maximum(key, low + 1), high))


@triton.jit
def _search(
    logits_ptr: tl.tensor, row: tl.tensor, temperature: tl.tensor, at: tl.tensor, counts_ptr: tl.tensor, seen_ptr: tl.tensor,
    penalties_ptr: tl.tensor, best: tl.tensor, low: tl.tensor, target: tl.tensor,
    V: tl.constexpr, BLOCK: tl.constexpr, PENALTIES: tl.constexpr, COUNT: tl.constexpr,
) -> Any:  # fmt: skip
    """The largest logit v >= `low` that occurs with at least `target` at or above it: that many logits, or (not COUNT) that share of the
    probability at or above `low`."""
    low = _key(low)
    high = _key(best)
    wanted = target.to(tl.float64)
    rounds = 0
    while low < high:
        pivot = _pivots(low, high, rounds)
        pivot_x, low_x, high_x = _value(pivot), _value(low), _value(high)
        above = tl.zeros([PIVOTS, BLOCK], tl.float32)
        least = tl.full([BLOCK], float("inf"), tl.float32)
        most = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, V, BLOCK):
            _, x = read(
                logits_ptr, row, start + tl.arange(0, BLOCK), temperature, at, counts_ptr, seen_ptr, penalties_ptr, V, PENALTIES
            )  # fmt: skip
            weight = tl.full([BLOCK], 1.0, tl.float32) if COUNT else tl.exp(x - best)
            above += tl.where(x[None, :] >= pivot_x[:, None], weight[None, :], 0.0)
            inside = (x >= low_x) & (x <= high_x)
            least = tl.minimum(least, tl.where(inside, x, float("inf")))
            most = tl.maximum(most, tl.where(inside, x, float("-inf")))
        amount = tl.sum(above.to(tl.float64), 1)
        if not COUNT and rounds == 0:
            wanted = tl.max(amount, 0) * target
        enough = amount >= wanted
        new_low = tl.maximum(tl.max(tl.where(enough, pivot, low), 0), _key(tl.min(least, 0)))
        new_high = tl.minimum(tl.min(tl.where(enough, high, pivot - 1), 0), _key(tl.max(most, 0)))
        low = new_low
        high = tl.maximum(new_high, new_low)
        rounds += 1
    return _value(low)


@triton.jit
def find_borders(
    logits_ptr: tl.tensor, temperature_ptr: tl.tensor, top_k_ptr: tl.tensor, top_p_ptr: tl.tensor, min_p_ptr: tl.tensor, penalty_ptr: tl.tensor,
    counts_ptr: tl.tensor, seen_ptr: tl.tensor,
    penalties_ptr: tl.tensor, best_ptr: tl.tensor, least_ptr: tl.tensor, finite_ptr: tl.tensor, border_ptr: tl.tensor,
    V: tl.constexpr, CHUNKS: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr, PENALTIES: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """`border_ptr` [R]: the smallest kept logit; minus infinity where nothing is cut off."""
    trigger(PDL)
    row = tl.program_id(0).to(tl.int64)
    wait(PDL)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    cuts_k = (top_k > 0) & (top_k < V)
    chunk = tl.arange(0, SPAN)
    there = chunk < CHUNKS
    finite = tl.min(tl.load(finite_ptr + row * CHUNKS + chunk, mask=there, other=1), 0)
    border = float("-inf")
    if (finite == 1) & (temperature >= GREEDY_BELOW) & (cuts_k | (top_p < 1) | (min_p > 0)):
        at = tl.load(penalty_ptr + row) if PENALTIES else -1
        best = tl.max(tl.load(best_ptr + row * CHUNKS + chunk, mask=there, other=float("-inf")), 0)
        least = tl.min(tl.load(least_ptr + row * CHUNKS + chunk, mask=there, other=float("inf")), 0)
        border = least
        if min_p > 0:
            border = tl.maximum(best + tl.log(min_p), least)
        if cuts_k:
            border = tl.maximum(border, _search(
                logits_ptr, row, temperature, at, counts_ptr, seen_ptr, penalties_ptr, best, least, top_k, V, BLOCK, PENALTIES, True
            ))  # fmt: skip
        if top_p < 1:
            border = _search(
                logits_ptr, row, temperature, at, counts_ptr, seen_ptr, penalties_ptr, best, border, top_p, V, BLOCK, PENALTIES, False
            )  # fmt: skip
    tl.store(border_ptr + row, border)
