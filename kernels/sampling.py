"""Sampling in Triton: penalties, temperature, min-p, top-k, top-p, the draw, logprobs. Twin of kernels.reference.sampling.

One pass over the logits gives each chunk of a row its largest value and its probability mass; rows that are filtered get a border and a second
pass; the draw then needs one chunk only. Nothing waits for the device. Greedy and unfiltered batches take two kernels.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.borders import find_borders
from kernels.launch import launch, power_of_two, trigger, wait
from kernels.logits import GREEDY_BELOW, read
from kernels.reference.sampling import Penalties, Sampled, SamplingBatch

CHUNK = 4096
"""Logits of one program of the scan."""
BORDER_BLOCK = 2048


@triton.jit
def _scan(
    logits_ptr: tl.tensor, temperature_ptr: tl.tensor, border_ptr: tl.tensor, penalty_ptr: tl.tensor, counts_ptr: tl.tensor, seen_ptr: tl.tensor,
    penalties_ptr: tl.tensor,
    best_ptr: tl.tensor, least_ptr: tl.tensor, id_ptr: tl.tensor, mass_ptr: tl.tensor, finite_ptr: tl.tensor,
    V: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, AGAIN: tl.constexpr, PENALTIES: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """Per row and chunk [R, CHUNKS]: largest and smallest value, lowest id of the largest, mass relative to it, whether all are finite.

    AGAIN: only rows with a border, and only what is at or above it counts; the other columns stay.
    """
    trigger(PDL)
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    out = row * CHUNKS + chunk
    wait(PDL)
    border = tl.load(border_ptr + row) if AGAIN else 0.0
    if border > float("-inf"):
        at = tl.load(penalty_ptr + row) if PENALTIES else -1
        raw, x = read(logits_ptr, row, column, tl.load(temperature_ptr + row), at, counts_ptr, seen_ptr, penalties_ptr, V, PENALTIES)
        inside = column < V
        if AGAIN:
            x = tl.where(x >= border, x, float("-inf"))
        best = tl.max(x, 0)
        anchor = tl.where(best == float("-inf"), 0.0, best)
        tl.store(best_ptr + out, best)
        tl.store(mass_ptr + out, tl.sum(tl.exp(x - anchor).to(tl.float64), 0))
        if not AGAIN:
            tl.store(least_ptr + out, tl.min(tl.where(inside, x, float("inf")), 0))
            tl.store(id_ptr + out, tl.min(tl.where(x == best, column, V - 1), 0))
            tl.store(finite_ptr + out, tl.min(tl.where((tl.abs(raw) < float("inf")) | (column >= V), 1, 0), 0))


@triton.jit
def _uniform(seed: tl.tensor, position: tl.tensor) -> Any:
    """One float64 in (0, 1) from Philox4x32-10 under key `seed` and counter `position`, both int64."""
    zero = (position * 0).to(tl.uint32)
    first, second, _, _ = tl.philox(seed, position.to(tl.uint32), (position >> 32).to(tl.uint32), zero, zero)
    bits = (first.to(tl.int64) << 20) | (second.to(tl.int64) >> 12)
    return (bits.to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def _draw(
    logits_ptr: tl.tensor, temperature_ptr: tl.tensor, border_ptr: tl.tensor, penalty_ptr: tl.tensor, counts_ptr: tl.tensor, seen_ptr: tl.tensor,
    penalties_ptr: tl.tensor,
    seed_ptr: tl.tensor, position_ptr: tl.tensor, best_ptr: tl.tensor, id_ptr: tl.tensor, mass_ptr: tl.tensor, finite_ptr: tl.tensor,
    token_ptr: tl.tensor, good_ptr: tl.tensor,
    V: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, SPAN: tl.constexpr,
    FILTERED: tl.constexpr, PENALTIES: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """The row's token: the lowest id of the largest logit, or by inverse CDF in id order."""
    trigger(PDL)
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.arange(0, SPAN)
    there = chunk < CHUNKS
    wait(PDL)
    temperature = tl.load(temperature_ptr + row)
    finite = tl.min(tl.load(finite_ptr + row * CHUNKS + chunk, mask=there, other=1), 0)
    bests = tl.load(best_ptr + row * CHUNKS + chunk, mask=there, other=float("-inf"))
    best = tl.max(bests, 0)
    token = (row * 0).to(tl.int32)
    if finite == 1:
        if temperature >= GREEDY_BELOW:
            masses = tl.load(mass_ptr + row * CHUNKS + chunk, mask=there, other=0.0) * tl.exp(bests - best)
            sums = tl.cumsum(masses, 0)
            target = _uniform(tl.load(seed_ptr + row), tl.load(position_ptr + row)) * tl.max(sums, 0)
            last = tl.max(tl.where(masses > 0, chunk, 0), 0)
            chosen = tl.minimum(tl.sum((there & (sums <= target)).to(tl.int32), 0), last)
            before = tl.max(tl.where(chunk < chosen, sums, 0.0), 0)
            column = chosen * CHUNK + tl.arange(0, CHUNK)
            at = tl.load(penalty_ptr + row) if PENALTIES else -1
            _, x = read(logits_ptr, row, column, temperature, at, counts_ptr, seen_ptr, penalties_ptr, V, PENALTIES)
            if FILTERED:
                x = tl.where(x >= tl.load(border_ptr + row), x, float("-inf"))
            inner = tl.cumsum(tl.exp(x - best).to(tl.float64), 0)
            found = chosen * CHUNK + tl.sum((inner <= target - before).to(tl.int32), 0)
            token = tl.minimum(found, tl.max(tl.where(x > float("-inf"), column, 0), 0))
        else:
            token = tl.min(tl.where(there & (bests == best), tl.load(id_ptr + row * CHUNKS + chunk, mask=there, other=V), V), 0)
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


def sample(logits_RV: Tensor, batch: SamplingBatch) -> Sampled:
    """One token per row of the contiguous `logits_RV` (any float type; computed in float32), which is left as it is.

    The batch's columns lie on the device of the logits. Rows with a temperature below GREEDY_BELOW are greedy.
    """
    (rows, vocab), device = logits_RV.shape, logits_RV.device
    chunks = triton.cdiv(vocab, CHUNK)
    values = torch.empty(2, rows, chunks, device=device)
    ids, finite = torch.empty(2, rows, chunks, dtype=torch.int32, device=device)
    mass = torch.empty(rows, chunks, dtype=torch.float64, device=device)
    border, token = torch.empty(rows, device=device), torch.empty(rows, dtype=torch.int64, device=device)
    good = torch.empty(rows, dtype=torch.uint8, device=device)
    penalties = _penalty_arguments(batch.penalties, rows, device)
    size: dict[str, Any] = {"V": vocab, "CHUNKS": chunks, "PENALTIES": batch.penalties is not None}
    scan = (logits_RV, batch.temperature, border, *penalties, *values, ids, mass, finite)
    launch(_scan, (rows, chunks), *scan, CHUNK=CHUNK, AGAIN=False, num_warps=8, **size)
    span = power_of_two(chunks)
    if batch.filtered:
        columns = (batch.temperature, batch.top_k, batch.top_p, batch.min_p)
        launch(find_borders, (rows,), logits_RV, *columns, *penalties, *values, finite, border, SPAN=span, BLOCK=BORDER_BLOCK, num_warps=16, **size)
        launch(_scan, (rows, chunks), *scan, CHUNK=CHUNK, AGAIN=True, num_warps=8, **size)
    launch(
        _draw, (rows,),
        logits_RV, batch.temperature, border, *penalties, batch.seed, batch.position, values[0], ids, mass, finite, token, good,
        CHUNK=CHUNK, SPAN=span, FILTERED=bool(batch.filtered), num_warps=8, **size,
    )  # fmt: skip
    if not batch.logprob_rows:
        return Sampled(token=token, finite=good.view(torch.bool))
    chosen, top, top_ids = _logprobs(logits_RV, token, batch)
    return Sampled(token=token, finite=good.view(torch.bool), chosen=chosen, top=top, top_ids=top_ids)
