"""Finding the border of top-k or top-p without a sort, exact for any k and p.

Whether a value v is kept depends only on how much lies at or above it (a count for top-k, a probability for top-p), which falls as v rises. So
the border is found by narrowing a bracket: each round measures PIVOTS values between the bracket's ends. Brackets are in the order of float32
bit patterns, so the search ends even where values are dense, and shrink to the values that occur, so ties end it early.
"""

from typing import Any

import triton
import triton.language as tl

PIVOTS = tl.constexpr(8)
EVEN_ROUNDS = tl.constexpr(5)
"""Rounds whose pivots are evenly spaced by value, which is quick for smooth distributions; later ones divide what is left of the bit patterns."""

FINE = tl.constexpr(float(1 << 40))


@triton.jit
def order(x: tl.tensor) -> Any:
    """int32 in the order of the float32 `x`."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value(key: tl.tensor) -> Any:
    """The float32 of a key."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def pivots(low: tl.tensor, high: tl.tensor, rounds: tl.tensor) -> Any:
    """Keys [PIVOTS] from `low`, the others above it and at most `high`."""
    step = tl.arange(0, PIVOTS)
    low_x, high_x = value(low), value(high)
    even = order(low_x + (high_x - low_x) * (step.to(tl.float32) / (PIVOTS - 1)))
    halving = (low + (high.to(tl.int64) - low) * step // (PIVOTS - 1)).to(tl.int32)
    key = tl.where(rounds < EVEN_ROUNDS, even, halving)
    return tl.where(step == 0, low, tl.minimum(tl.maximum(key, low + 1), high))


@triton.jit
def measure(
    x: tl.tensor, best: tl.tensor, pivot: tl.tensor, low: tl.tensor, high: tl.tensor, above: tl.tensor, least: tl.tensor, most: tl.tensor,
    COUNT: tl.constexpr,
) -> Any:  # fmt: skip
    """Add the values `x` [N] to what is at or above each pivot, [PIVOTS, N], a count or weights exp(x - best), and to the extremes in the bracket."""
    weight = tl.full(x.shape, 1.0, tl.float32) if COUNT else tl.exp(x - best)
    above += tl.where(x[None, :] >= value(pivot)[:, None], weight[None, :], 0.0)
    inside = (x >= value(low)) & (x <= value(high))
    least = tl.minimum(least, tl.where(inside, x, float("inf")))
    most = tl.maximum(most, tl.where(inside, x, float("-inf")))
    return above, least, most


@triton.jit
def narrow(pivot: tl.tensor, enough: tl.tensor, low: tl.tensor, high: tl.tensor, least: tl.tensor, most: tl.tensor) -> Any:
    """The bracket after a round: from the highest pivot with `enough` at or above it to below the next, cut to the values that occur."""
    new_low = tl.maximum(tl.max(tl.where(enough, pivot, low), 0), order(tl.min(least, 0)))
    new_high = tl.minimum(tl.min(tl.where(enough, high, pivot - 1), 0), order(tl.max(most, 0)))
    return new_low, tl.maximum(new_high, new_low)


@triton.jit
def exact_sum(weight: tl.tensor, axis: tl.constexpr) -> Any:
    """The sum, in float64, of at most 2,048 float32 weights of 0..1 along `axis`, each cut to FINE parts of 1: the same in any order."""
    return tl.sum((weight.to(tl.float64) * FINE).to(tl.int64), axis).to(tl.float64) / FINE


@triton.jit
def search(x: tl.tensor, best: tl.tensor, low: tl.tensor, wanted: tl.tensor, limit: tl.tensor, COUNT: tl.constexpr) -> Any:
    """The largest of the values `x` [N], at least `low`, with at least `wanted` at or above it: a count, or weights exp(x - best).

    A value with no more than `limit` at or above it will do as well.
    """
    low = order(low)
    high = order(best)
    rounds = 0
    while low < high:
        pivot = pivots(low, high, rounds)
        above = tl.zeros([PIVOTS, x.shape[0]], tl.float32)  # type: ignore[misc]
        none = tl.full(x.shape, float("inf"), tl.float32)
        above, least, most = measure(x, best, pivot, low, high, above, none, -none, COUNT)
        amount = tl.sum(above, 1).to(tl.float64) if COUNT else exact_sum(above, 1)
        enough = amount >= wanted
        low, high = narrow(pivot, enough, low, high, least, most)
        if tl.min(tl.where(enough, amount, limit + 1), 0) <= limit:
            high = low
        rounds += 1
    return value(low)
