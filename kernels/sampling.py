"""Sampling in Triton: penalties, temperature, min-p, top-k, top-p, the draw, logprobs. Twin of kernels.reference.sampling.

One pass over the logits gives each chunk of a row its largest value and its probability mass; rows that are filtered get a border (the smallest
logit that is kept) and the mass at or above it; the draw then needs one chunk only. Nothing waits for the device. Greedy and unfiltered batches
take two kernels.
"""

from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.borders import find_borders
from kernels.candidates import CAPACITY, FEW, GROUP, choose_threshold, gather, settle
from kernels.launch import cdiv, launch, power_of_two, trigger, wait
from kernels.logits import GREEDY_BELOW, all_finite, read
from kernels.reference.sampling import Penalties, Sampled, SamplingBatch

CHUNK, SCAN_WARPS = 1024, 1
"""Logits of one program of a scan, and its warps."""
GROUPED_CHUNK = 4096
"""The same where a row is filtered."""
DRAW_WARPS = 1
BORDER_BLOCK = 2048


@triton.jit
def _scan(
    logits_ptr: tl.tensor, temperature_ptr: tl.tensor, penalty_ptr: tl.tensor, counts_ptr: tl.tensor, seen_ptr: tl.tensor, penalties_ptr: tl.tensor,
    best_ptr: tl.tensor, mass_ptr: tl.tensor,
    V: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, RANDOM: tl.constexpr, PENALTIES: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Per row and chunk [R, CHUNKS]: the largest value, and the mass relative to it, which is NaN if a logit is not finite (0 for greedy rows)."""
    trigger(PDL)
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    wait(PDL)
    temperature = tl.load(temperature_ptr + row)
    at = tl.load(penalty_ptr + row) if PENALTIES else -1
    raw, x = read(logits_ptr, row, column, temperature, at, counts_ptr, seen_ptr, penalties_ptr, V, PENALTIES)
    best = tl.max(x, 0)
    mass = tl.where(column < V, raw, 0.0) * 0.0
    if RANDOM and temperature >= GREEDY_BELOW:
        mass += tl.exp(x - best)
    tl.store(best_ptr + row * CHUNKS + chunk, best)
    tl.store(mass_ptr + row * CHUNKS + chunk, tl.sum(mass, 0))


@triton.jit
def _scan_groups(
    logits_ptr: tl.tensor, temperature_ptr: tl.tensor, penalty_ptr: tl.tensor, counts_ptr: tl.tensor, seen_ptr: tl.tensor, penalties_ptr: tl.tensor,
    best_ptr: tl.tensor, mass_ptr: tl.tensor, least_ptr: tl.tensor, group_ptr: tl.tensor,
    V: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, CHUNKS: tl.constexpr, PENALTIES: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """As `_scan` with chunks of GROUPS x GROUP logits, and for the filters the smallest value and the largest of every group."""
    trigger(PDL)
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = (chunk * GROUPS + tl.arange(0, GROUPS))[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    out = row * CHUNKS + chunk
    wait(PDL)
    at = tl.load(penalty_ptr + row) if PENALTIES else -1
    raw, x = read(logits_ptr, row, column, tl.load(temperature_ptr + row), at, counts_ptr, seen_ptr, penalties_ptr, V, PENALTIES)
    inside = column < V
    group = tl.max(x, 1)
    best = tl.max(group, 0)
    tl.store(best_ptr + out, best)
    tl.store(mass_ptr + out, tl.sum(tl.sum(tl.exp(x - best) + tl.where(inside, raw, 0.0) * 0.0, 1), 0))
    tl.store(least_ptr + out, tl.min(tl.min(tl.where(inside, x, float("inf")), 1), 0))
    tl.store(group_ptr + out * GROUPS + tl.arange(0, GROUPS), group)


@triton.jit
def _rescan(
    logits_ptr: tl.tensor, temperature_ptr: tl.tensor, border_ptr: tl.tensor, penalty_ptr: tl.tensor, counts_ptr: tl.tensor, seen_ptr: tl.tensor,
    penalties_ptr: tl.tensor, best_ptr: tl.tensor, mass_ptr: tl.tensor,
    V: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, PENALTIES: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """The mass of rows that have a border, without what lies below it."""
    trigger(PDL)
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    out = row * CHUNKS + chunk
    wait(PDL)
    border = tl.load(border_ptr + row)
    if border > float("-inf"):
        best = tl.load(best_ptr + out)
        mass = 0.0
        if best >= border:
            at = tl.load(penalty_ptr + row) if PENALTIES else -1
            column = chunk * CHUNK + tl.arange(0, CHUNK)
            _, x = read(logits_ptr, row, column, tl.load(temperature_ptr + row), at, counts_ptr, seen_ptr, penalties_ptr, V, PENALTIES)
            mass = tl.sum(tl.where(x >= border, tl.exp(x - best), 0.0), 0)
        tl.store(mass_ptr + out, mass)


@triton.jit
def _uniform(seed: tl.tensor, position: tl.tensor) -> Any:
    """One float64 in (0, 1) from Philox4x32-10 under key `seed` and counter `position`, both int64."""
    zero = (position * 0).to(tl.uint32)
    first, second, _, _ = tl.philox(seed, position.to(tl.uint32), (position >> 32).to(tl.uint32), zero, zero)
    bits = (first.to(tl.int64) << 20) | (second.to(tl.int64) >> 12)
    return (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def _weigh(where: tl.tuple, column: tl.tensor, border: tl.tensor, best: tl.tensor, V: tl.constexpr, PENALTIES: tl.constexpr) -> Any:
    """exp(x - best) of the logits that are kept, 0 for others, and which those are. `where`: the other arguments of kernels.logits.read."""
    _, x = read(where[0], where[1], column, where[2], where[3], where[4], where[5], where[6], V, PENALTIES)  # type: ignore[index]
    kept = (x >= border) & (column < V)
    return tl.where(kept, tl.exp(x - best), 0.0), kept


@triton.jit
def _lowest(where: tl.tuple, column: tl.tensor, best: tl.tensor, V: tl.constexpr, PENALTIES: tl.constexpr) -> Any:
    """The first column whose logit is `best`."""
    _, x = read(where[0], where[1], column, where[2], where[3], where[4], where[5], where[6], V, PENALTIES)  # type: ignore[index]
    return tl.min(tl.where(x == best, column, V - 1), 0)


@triton.jit
def _draw(
    logits_ptr: tl.tensor, temperature_ptr: tl.tensor, border_ptr: tl.tensor, penalty_ptr: tl.tensor, counts_ptr: tl.tensor, seen_ptr: tl.tensor,
    penalties_ptr: tl.tensor,
    seed_ptr: tl.tensor, position_ptr: tl.tensor, best_ptr: tl.tensor, mass_ptr: tl.tensor,
    token_ptr: tl.tensor, good_ptr: tl.tensor,
    V: tl.constexpr, CHUNKS: tl.constexpr, SPAN: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr,
    FILTERED: tl.constexpr, PENALTIES: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """The row's token: the lowest id of the largest logit, or by inverse CDF in id order."""
    trigger(PDL)
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, SPAN)
    there = chunk < CHUNKS
    wait(PDL)
    temperature = tl.load(temperature_ptr + row)
    bests = tl.load(best_ptr + row * CHUNKS + chunk, mask=there, other=float("-inf"))
    masses = tl.load(mass_ptr + row * CHUNKS + chunk, mask=there, other=0.0)
    best = tl.max(bests, 0)
    finite = all_finite(masses)
    token = (row * 0).to(tl.int32)
    if finite:
        at = tl.load(penalty_ptr + row) if PENALTIES else -1
        where = (logits_ptr, row, temperature, at, counts_ptr, seen_ptr, penalties_ptr)
        if temperature >= GREEDY_BELOW:
            weights = masses.to(tl.float64) * tl.exp(bests - best).to(tl.float64)
            sums = tl.cumsum(weights, 0)
            target = _uniform(tl.load(seed_ptr + row), tl.load(position_ptr + row)) * tl.max(sums, 0)
            chosen = tl.minimum(tl.sum((there & (sums <= target)).to(tl.int32), 0), tl.max(tl.where(weights > 0, chunk, 0), 0))
            left = target - tl.max(tl.where(chunk < chosen, sums, 0.0), 0)
            border = tl.load(border_ptr + row) if FILTERED else float("-inf")
            group = tl.arange(0, GROUPS)
            member = tl.arange(0, GROUP)
            first = chosen * GROUPS * GROUP
            cells, _ = _weigh(where, first + group[:, None] * GROUP + member[None, :], border, best, V, PENALTIES)
            parts = tl.sum(cells, 1).to(tl.float64)
            within = tl.cumsum(parts, 0)
            chosen = tl.minimum(tl.sum((within <= left).to(tl.int32), 0), tl.max(tl.where(parts > 0, group, 0), 0))
            left -= tl.max(tl.where(group < chosen, within, 0.0), 0)
            column = first + chosen * GROUP + member
            single, kept = _weigh(where, column, border, best, V, PENALTIES)
            found = first + chosen * GROUP + tl.sum((tl.cumsum(single.to(tl.float64), 0) <= left).to(tl.int32), 0)
            token = tl.minimum(found, tl.max(tl.where(kept, column, 0), 0))
        else:
            first = tl.min(tl.where(bests == best, chunk, SPAN), 0) * GROUPS * GROUP
            token = _lowest(where, first + tl.arange(0, GROUPS * GROUP), best, V, PENALTIES)
    tl.store(token_ptr + row, token.to(tl.int64))
    tl.store(good_ptr + row, finite.to(tl.uint8))


def _penalty_arguments(penalties: Penalties | None, rows: int, device: torch.device) -> tuple[Tensor | None, ...]:
    """`at` [R] int32 (row of the penalties, -1: none), counts, seen and the three factors [N, 3] for kernels.logits."""
    if penalties is None:
        return None, None, None, None
    at = torch.full((rows,), -1, dtype=torch.int32, device=device)
    at[penalties.row] = torch.arange(len(penalties.row), dtype=torch.int32, device=device)
    factors = torch.stack((penalties.repetition, penalties.presence, penalties.frequency), 1)
    return at, penalties.counts.contiguous(), penalties.seen.contiguous().view(torch.uint8), factors


def _logprobs(logits_RV: Tensor, token: Tensor, batch: SamplingBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Logprob of the token, the largest and their ids, for the rows that asked."""
    row = torch.tensor(batch.logprob_rows, device=logits_RV.device)
    logprobs = torch.log_softmax(logits_RV[row].float(), -1)
    top, top_ids = torch.topk(logprobs, min(max(batch.logprob_counts), logits_RV.shape[1]), sorted=True)
    return logprobs.gather(1, token[row][:, None]).squeeze(1), top, top_ids


class _Columns:
    """What the kernels leave for one another: one value for each row, or for each row and chunk."""

    def __init__(self, rows: int, vocab: int, filtered: bool, device: torch.device) -> None:
        self.chunk = GROUPED_CHUNK if filtered else CHUNK
        self.chunks = cdiv(vocab, self.chunk)
        self.best, self.least, self.mass = _aligned(3, rows * self.chunks, torch.float32, device)
        self.border, self.threshold = _aligned(2, rows, torch.float32, device)
        self.count, self.todo = _aligned(2, rows, torch.int32, device)
        self.group = torch.empty(rows * self.chunks * (self.chunk // GROUP) if filtered else 0, device=device)
        self.found = torch.empty(rows * CAPACITY if filtered else 0, device=device)


def _aligned(count: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[count, size and more]: rows that begin at multiples of 16 bytes whatever their size, as a kernel is compiled anew for pointers that do not."""
    return torch.empty(count, cdiv(size, 4) * 4, dtype=dtype, device=device)


def _filter(logits_RV: Tensor, batch: SamplingBatch, penalties: tuple[Tensor | None, ...], c: _Columns, size: dict[str, Any]) -> None:
    """Set the border of every row, and the mass of those that have one to what the border leaves."""
    (rows, vocab), chunks = logits_RV.shape, c.chunks
    span, groups = power_of_two(chunks), chunks * (c.chunk // GROUP)
    columns = (batch.top_k, batch.top_p, batch.min_p)
    launch(
        choose_threshold, (rows,), rows, batch.temperature, *columns, c.best, c.mass, c.group, c.threshold, c.count, c.todo, c.border,
        V=vocab, CHUNKS=chunks, SPAN=span, GROUPS=groups, GROUP_SPAN=power_of_two(groups), num_warps=8,
    )  # fmt: skip
    where = (logits_RV, batch.temperature, *penalties)
    launch(gather, (rows, chunks), rows, *where, c.best, c.threshold, c.count, c.found, CHUNK=c.chunk, CAPACITY=CAPACITY, num_warps=8, **size)
    launch(
        settle, (rows,), rows, *columns, c.best, c.mass, c.threshold, c.count, c.found, c.todo, c.border,
        V=vocab, CHUNKS=chunks, SPAN=span, FEW=FEW, CAPACITY=CAPACITY, num_warps=4,
    )  # fmt: skip
    launch(
        find_borders, (rows,), rows, logits_RV, batch.temperature, *columns, *penalties, c.best, c.least, c.todo, c.border,
        SPAN=span, BLOCK=BORDER_BLOCK, num_warps=16, **size,
    )  # fmt: skip
    launch(_rescan, (rows, chunks), rows, logits_RV, batch.temperature, c.border, *penalties, c.best, c.mass, CHUNK=c.chunk, num_warps=8, **size)


def _scanned_again(logits_RV: Tensor, batch: SamplingBatch, penalties: tuple[Tensor | None, ...], border: Tensor) -> _Columns:
    """The columns of a batch that is not filtered, of rows with these borders: a row is drawn by the same sums beside filtered rows and alone."""
    rows, vocab = logits_RV.shape
    c = _Columns(rows, vocab, False, logits_RV.device)
    c.border = border
    size: dict[str, Any] = {"V": vocab, "CHUNK": c.chunk, "CHUNKS": c.chunks, "PENALTIES": batch.penalties is not None, "num_warps": SCAN_WARPS}
    launch(_scan, (rows, c.chunks), rows, logits_RV, batch.temperature, *penalties, c.best, c.mass, RANDOM=True, **size)
    launch(_rescan, (rows, c.chunks), rows, logits_RV, batch.temperature, border, *penalties, c.best, c.mass, **size)
    return c


def sample(logits_RV: Tensor, batch: SamplingBatch, one_order: bool = False) -> Sampled:
    """One token per row of the contiguous `logits_RV` (any float type; computed in float32), which is left as it is.

    The batch's columns lie on the device of the logits. Rows with a temperature below GREEDY_BELOW are greedy. `one_order`: sums of a row do not
    depend on how other rows are sampled.
    """
    (rows, vocab), device = logits_RV.shape, logits_RV.device
    filtered = bool(batch.filtered)
    c = _Columns(rows, vocab, filtered, device)
    token, good = torch.empty(rows, dtype=torch.int64, device=device), torch.empty(rows, dtype=torch.uint8, device=device)
    penalties = _penalty_arguments(batch.penalties, rows, device)
    size: dict[str, Any] = {"V": vocab, "CHUNKS": c.chunks, "PENALTIES": batch.penalties is not None}
    where = (logits_RV, batch.temperature, *penalties)
    if filtered:
        launch(
            _scan_groups, (rows, c.chunks), rows, *where, c.best, c.mass, c.least, c.group,
            GROUPS=c.chunk // GROUP, GROUP=GROUP, num_warps=8, **size,
        )  # fmt: skip
        _filter(logits_RV, batch, penalties, c, size)
        if one_order:
            c = _scanned_again(logits_RV, batch, penalties, c.border)
            size["CHUNKS"] = c.chunks
    else:
        random = one_order or bool(batch.random)
        launch(_scan, (rows, c.chunks), rows, *where, c.best, c.mass, CHUNK=c.chunk, RANDOM=random, num_warps=SCAN_WARPS, **size)
    launch(
        _draw, (rows,), rows, logits_RV, batch.temperature, c.border, *penalties, batch.seed, batch.position, c.best, c.mass, token, good,
        SPAN=power_of_two(c.chunks), GROUPS=c.chunk // GROUP, GROUP=GROUP, FILTERED=filtered, num_warps=DRAW_WARPS, **size,
    )  # fmt: skip
    found = Sampled(token=token, finite=good.view(torch.bool))
    if not batch.logprob_rows:
        return found
    chosen, top, top_ids = _logprobs(logits_RV, token, batch)
    return replace(found, chosen=chosen, top=top, top_ids=top_ids)
