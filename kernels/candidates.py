"""Top-k, top-p and min-p from a few of a row's largest logits, which is all they need for the distributions that language models give.

A row's groups of GROUP logits have known maxima. The k-th largest maximum is no larger than the k-th largest logit, so the logits at or above it
hold the k largest and few others: those are gathered and searched. Rows for which CAPACITY candidates do not settle it (flat distributions with
a large p, a huge k) are marked for `kernels.borders`.
"""

from typing import Any

import triton
import triton.language as tl

from kernels.bracket import exact_sum, search
from kernels.launch import trigger, wait
from kernels.logits import GREEDY_BELOW, all_finite, read

GROUP = 64
FEW = 256
CAPACITY = 2048
MOST_WANTED = tl.constexpr(1024)
"""Largest k that is looked for among candidates."""
SLACK = tl.constexpr(1.25)
"""So many times as many groups as are wanted may be above the threshold: finding it exactly takes longer than a few more candidates."""
WANTED_FOR_P = tl.constexpr(512)
"""Logits to look at for a top-p alone."""


@triton.jit
def choose_threshold(
    temperature_ptr: tl.tensor, top_k_ptr: tl.tensor, top_p_ptr: tl.tensor, min_p_ptr: tl.tensor, best_ptr: tl.tensor, mass_ptr: tl.tensor,
    group_ptr: tl.tensor, threshold_ptr: tl.tensor, count_ptr: tl.tensor, todo_ptr: tl.tensor, border_ptr: tl.tensor,
    V: tl.constexpr, CHUNKS: tl.constexpr, SPAN: tl.constexpr, GROUPS: tl.constexpr, GROUP_SPAN: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Per row: the candidates are the logits at or above `threshold`; none (infinity) where nothing is filtered or `todo` leaves it to others.

    Also sets `count` to 0 and `border` to minus infinity.
    """
    trigger(PDL)
    row = tl.program_id(0).to(tl.int64)
    wait(PDL)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    chunk = tl.arange(0, SPAN)
    there = chunk < CHUNKS
    finite = all_finite(tl.load(mass_ptr + row * CHUNKS + chunk, mask=there, other=0.0))
    cuts_k = (top_k > 0) & (top_k < V)
    threshold = float("inf")
    todo = 0
    if finite & (temperature >= GREEDY_BELOW) & (cuts_k | (top_p < 1) | (min_p > 0)):
        best = tl.max(tl.load(best_ptr + row * CHUNKS + chunk, mask=there, other=float("-inf")), 0)
        if cuts_k & (top_k > MOST_WANTED):
            todo = 1
        else:
            if (min_p > 0) & (top_k <= 0):
                threshold = best + tl.log(min_p)
            else:
                wanted = tl.where(cuts_k, top_k, WANTED_FOR_P).to(tl.float64)
                group = tl.arange(0, GROUP_SPAN)
                x = tl.load(group_ptr + row * GROUPS + group, mask=group < GROUPS, other=float("-inf"))
                least = tl.min(tl.where(x > float("-inf"), x, float("inf")), 0)
                threshold = float("-inf")
                if tl.sum((x > float("-inf")).to(tl.float64), 0) >= wanted:
                    threshold = search(x, best, least, wanted, wanted * SLACK, True)
    tl.store(threshold_ptr + row, threshold)
    tl.store(count_ptr + row, 0)
    tl.store(todo_ptr + row, todo)
    tl.store(border_ptr + row, float("-inf"))


@triton.jit
def gather(
    logits_ptr: tl.tensor, temperature_ptr: tl.tensor, penalty_ptr: tl.tensor, counts_ptr: tl.tensor, seen_ptr: tl.tensor, penalties_ptr: tl.tensor,
    best_ptr: tl.tensor, threshold_ptr: tl.tensor, count_ptr: tl.tensor, found_ptr: tl.tensor,
    V: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, CAPACITY: tl.constexpr, PENALTIES: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """The row's candidates into `found` [R, CAPACITY], in any order; `count` [R] is how many there are, stored or not."""
    trigger(PDL)
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    wait(PDL)
    threshold = tl.load(threshold_ptr + row)
    if tl.load(best_ptr + row * CHUNKS + chunk) >= threshold:
        column = chunk * CHUNK + tl.arange(0, CHUNK)
        at = tl.load(penalty_ptr + row) if PENALTIES else -1
        _, x = read(logits_ptr, row, column, tl.load(temperature_ptr + row), at, counts_ptr, seen_ptr, penalties_ptr, V, PENALTIES)
        kept = (x >= threshold) & (column < V)
        number = tl.cumsum(kept.to(tl.int32), 0)
        place = tl.atomic_add(count_ptr + row, tl.max(number, 0)) + number - 1
        tl.store(found_ptr + row * CAPACITY + place, x, mask=kept & (place < CAPACITY))


@triton.jit
def _border(
    found_ptr: tl.tensor, count: tl.tensor, best: tl.tensor, total: tl.tensor, top_k: tl.tensor, top_p: tl.tensor, min_p: tl.tensor,
    V: tl.constexpr, WIDTH: tl.constexpr,
) -> Any:  # fmt: skip
    """The border among `count` candidates, and whether they settle it. `total`: mass of the whole row."""
    place = tl.arange(0, WIDTH)
    x = tl.load(found_ptr + place, mask=place < count, other=float("-inf"))
    border = tl.min(tl.where(place < count, x, float("inf")), 0)
    cuts_k = (top_k > 0) & (top_k < V)
    if cuts_k:
        border = search(x, best, border, top_k.to(tl.float64), 0.0, True)
    if min_p > 0:
        border = tl.maximum(border, best + tl.log(min_p))
    settled = 1
    if top_p < 1:
        kept = exact_sum(tl.where(x >= border, tl.exp(x - best), 0.0), 0)  # candidates come in any order
        wanted = tl.where(cuts_k | (min_p > 0), kept, total) * top_p
        if kept < wanted:
            settled = 0
        else:
            border = search(x, best, border, wanted, -1.0, False)
    return border, settled


@triton.jit
def settle(
    top_k_ptr: tl.tensor, top_p_ptr: tl.tensor, min_p_ptr: tl.tensor, best_ptr: tl.tensor, mass_ptr: tl.tensor,
    threshold_ptr: tl.tensor, count_ptr: tl.tensor, found_ptr: tl.tensor, todo_ptr: tl.tensor, border_ptr: tl.tensor,
    V: tl.constexpr, CHUNKS: tl.constexpr, SPAN: tl.constexpr, FEW: tl.constexpr, CAPACITY: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """`border` [R] from the candidates, or the row's mark in `todo`."""
    trigger(PDL)
    row = tl.program_id(0).to(tl.int64)
    wait(PDL)
    if tl.load(threshold_ptr + row) < float("inf"):
        top_k = tl.load(top_k_ptr + row)
        top_p = tl.load(top_p_ptr + row)
        min_p = tl.load(min_p_ptr + row)
        count = tl.load(count_ptr + row)
        chunk = tl.arange(0, SPAN)
        there = chunk < CHUNKS
        bests = tl.load(best_ptr + row * CHUNKS + chunk, mask=there, other=float("-inf"))
        best = tl.max(bests, 0)
        masses = tl.load(mass_ptr + row * CHUNKS + chunk, mask=there, other=0.0).to(tl.float64)
        total = tl.sum(masses * tl.exp(bests - best).to(tl.float64), 0)
        border = float("-inf")
        settled = 0
        if count <= FEW:
            border, settled = _border(found_ptr + row * CAPACITY, count, best, total, top_k, top_p, min_p, V, FEW)
        elif count <= CAPACITY:
            border, settled = _border(found_ptr + row * CAPACITY, count, best, total, top_k, top_p, min_p, V, CAPACITY)
        tl.store(border_ptr + row, border)
        tl.store(todo_ptr + row, 1 - settled)
