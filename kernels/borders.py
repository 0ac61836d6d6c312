"""Where top-k, top-p and min-p cut a row of any distribution, by passes over the whole row: for rows that `kernels.candidates` leaves."""

from typing import Any

import triton
import triton.language as tl

from kernels.bracket import PIVOTS, measure, narrow, order, pivots, value
from kernels.launch import trigger, wait
from kernels.logits import read


@triton.jit
def _search(
    logits_ptr: tl.tensor, row: tl.tensor, temperature: tl.tensor, at: tl.tensor, counts_ptr: tl.tensor, seen_ptr: tl.tensor,
    penalties_ptr: tl.tensor, best: tl.tensor, low: tl.tensor, target: tl.tensor,
    V: tl.constexpr, BLOCK: tl.constexpr, PENALTIES: tl.constexpr, COUNT: tl.constexpr,
) -> Any:  # fmt: skip
    """The largest logit v >= `low` that occurs with at least `target` at or above it: that many logits, or (not COUNT) that share of the
    probability at or above `low`."""
    low = order(low)
    high = order(best)
    wanted = target.to(tl.float64)
    rounds = 0
    while low < high:
        pivot = pivots(low, high, rounds)
        above = tl.zeros([PIVOTS, BLOCK], tl.float32)
        least = tl.full([BLOCK], float("inf"), tl.float32)
        most = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, V, BLOCK):
            _, x = read(
                logits_ptr, row, start + tl.arange(0, BLOCK), temperature, at, counts_ptr, seen_ptr, penalties_ptr, V, PENALTIES
            )  # fmt: skip
            above, least, most = measure(x, best, pivot, low, high, above, least, most, COUNT)
        amount = tl.sum(above.to(tl.float64), 1)
        if not COUNT and rounds == 0:
            wanted = tl.max(amount, 0) * target
        low, high = narrow(pivot, amount >= wanted, low, high, least, most)
        rounds += 1
    return value(low)


@triton.jit
def find_borders(
    logits_ptr: tl.tensor, temperature_ptr: tl.tensor, top_k_ptr: tl.tensor, top_p_ptr: tl.tensor, min_p_ptr: tl.tensor, penalty_ptr: tl.tensor,
    counts_ptr: tl.tensor, seen_ptr: tl.tensor, penalties_ptr: tl.tensor, best_ptr: tl.tensor, least_ptr: tl.tensor, todo_ptr: tl.tensor,
    border_ptr: tl.tensor,
    V: tl.constexpr, CHUNKS: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr, PENALTIES: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """`border_ptr` [R]: the smallest kept logit of the rows marked in `todo_ptr`."""
    trigger(PDL)
    row = tl.program_id(0).to(tl.int64)
    wait(PDL)
    if tl.load(todo_ptr + row) == 1:
        temperature = tl.load(temperature_ptr + row)
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        min_p = tl.load(min_p_ptr + row)
        chunk = tl.arange(0, SPAN)
        there = chunk < CHUNKS
        at = tl.load(penalty_ptr + row) if PENALTIES else -1
        best = tl.max(tl.load(best_ptr + row * CHUNKS + chunk, mask=there, other=float("-inf")), 0)
        border = tl.min(tl.load(least_ptr + row * CHUNKS + chunk, mask=there, other=float("inf")), 0)
        if min_p > 0:
            border = tl.maximum(best + tl.log(min_p), border)
        if (top_k > 0) & (top_k < V):
            border = tl.maximum(border, _search(
                logits_ptr, row, temperature, at, counts_ptr, seen_ptr, penalties_ptr, best, border, top_k, V, BLOCK, PENALTIES, True
            ))  # fmt: skip
        if top_p < 1:
            border = _search(
                logits_ptr, row, temperature, at, counts_ptr, seen_ptr, penalties_ptr, best, border, top_p, V, BLOCK, PENALTIES, False
            )  # fmt: skip
        tl.store(border_ptr + row, border)
