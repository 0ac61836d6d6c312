"""Row state on the device in Triton: one small kernel for each thing a step does with it. Twin of kernels.reference.resident."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import NEVER, cdiv, launch, trigger, wait
from kernels.reference.resident import FIRST, TURNS, Columns

BLOCK = 256


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["index_ptr", "word_ptr"])
def _write(arena_ptr: tl.tensor, index_ptr: tl.tensor, word_ptr: tl.tensor, count: tl.tensor, BLOCK: tl.constexpr, PDL: tl.constexpr) -> None:
    trigger(PDL)
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wait(PDL)
    inside = pair < count
    index = tl.load(index_ptr + pair, mask=inside, other=0)
    tl.store(arena_ptr + index, tl.load(word_ptr + pair, mask=inside, other=0), mask=inside)


def write_words(arena: Tensor, pairs: Tensor) -> None:
    """arena[pairs[0]] = pairs[1] for int32 `pairs` [2, N]. Pairs of one index hold the same word."""
    count = pairs.shape[1]
    launch(_write, (cdiv(count, BLOCK),), NEVER, arena, pairs[0], pairs[1], count, BLOCK=BLOCK, num_warps=4)


@triton.jit
def _columns(
    temperature_ptr: tl.tensor, top_p_ptr: tl.tensor, min_p_ptr: tl.tensor, top_k_ptr: tl.tensor, seed_ptr: tl.tensor,
    slot: tl.tensor, length: tl.tensor, floats_ptr: tl.tensor, ints_ptr: tl.tensor, row: tl.tensor, inside: tl.tensor, STRIDE: tl.constexpr,
) -> None:  # fmt: skip
    """How rows of `length` tokens are sampled: three columns of STRIDE values each in `floats`, three in `ints`."""
    tl.store(floats_ptr + row, tl.load(temperature_ptr + slot), mask=inside)
    tl.store(floats_ptr + STRIDE + row, tl.load(top_p_ptr + slot), mask=inside)
    tl.store(floats_ptr + 2 * STRIDE + row, tl.load(min_p_ptr + slot), mask=inside)
    tl.store(ints_ptr + row, tl.load(top_k_ptr + slot).to(tl.int64), mask=inside)
    tl.store(ints_ptr + STRIDE + row, tl.load(seed_ptr + slot), mask=inside)
    tl.store(ints_ptr + 2 * STRIDE + row, length.to(tl.int64), mask=inside)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["slot_ptr", "token_ptr", "position_ptr"])
def _begin(
    length_ptr: tl.tensor, last_ptr: tl.tensor, temperature_ptr: tl.tensor, top_p_ptr: tl.tensor, min_p_ptr: tl.tensor, top_k_ptr: tl.tensor,
    seed_ptr: tl.tensor, turn_ptr: tl.tensor, slot_ptr: tl.tensor, token_ptr: tl.tensor, position_ptr: tl.tensor, floats_ptr: tl.tensor,
    ints_ptr: tl.tensor, rows: tl.tensor, TURNS: tl.constexpr, SAMPLED: tl.constexpr, STRIDE: tl.constexpr, DUMMY: tl.constexpr, BLOCK: tl.constexpr,
    PDL: tl.constexpr,
) -> None:  # fmt: skip
    """SAMPLED: also the columns for sampling, of the length that counts the token, and the next turn."""
    trigger(PDL)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    wait(PDL)
    slot = tl.load(slot_ptr + row, mask=inside, other=DUMMY)
    length = tl.load(length_ptr + slot)
    tl.store(position_ptr + row, length, mask=inside)
    tl.store(token_ptr + row, tl.load(last_ptr + slot), mask=inside)
    tl.store(length_ptr + slot, length + 1, mask=slot < DUMMY)
    if SAMPLED:
        if tl.program_id(0) == 0:
            tl.store(turn_ptr, (tl.load(turn_ptr) + 1) % TURNS)
        counted = length + (slot < DUMMY).to(tl.int32)
        _columns(temperature_ptr, top_p_ptr, min_p_ptr, top_k_ptr, seed_ptr, slot, counted, floats_ptr, ints_ptr, row, inside, STRIDE)


def begin_rows(columns: Columns, slot_R: Tensor, token_R: Tensor, position_R: Tensor) -> None:
    """Decode rows of a step: `token` and `position` (int32) of each slot's next token, which its length then counts.

    The dummy slot stays at length 0.
    """
    _run_begin(columns, slot_R, token_R, position_R, None)


def start_rows(columns: Columns, slot_R: Tensor, token_R: Tensor, position_R: Tensor) -> tuple[Tensor, ...]:
    """`begin_rows`, and `sampling_columns` after it. Takes the next turn."""
    places = _places(slot_R)
    _run_begin(columns, slot_R, token_R, position_R, places)
    return _cut(places, slot_R.shape[0])


def _run_begin(columns: Columns, slot_R: Tensor, token_R: Tensor, position_R: Tensor, places: tuple[Tensor, Tensor] | None) -> None:
    rows, dummy = slot_R.shape[0], columns.length.shape[0] - 1
    launch(
        _begin, (cdiv(rows, BLOCK),), rows, columns.length, columns.last, columns.temperature, columns.top_p, columns.min_p, columns.top_k,
        columns.seed, columns.turn, slot_R, token_R, position_R, *(places or (None, None)), rows, TURNS=TURNS,
        SAMPLED=places is not None, STRIDE=0 if places is None else places[0].shape[1], DUMMY=dummy, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip


def _places(slot_R: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for the columns that `_cut` gives."""
    stride = cdiv(slot_R.shape[0], BLOCK) * BLOCK
    return torch.empty(3, stride, device=slot_R.device), torch.empty(3, stride, dtype=torch.int64, device=slot_R.device)


def _cut(places: tuple[Tensor, Tensor], rows: int) -> tuple[Tensor, ...]:
    """temperature, top_p and min_p (float32), top_k, seed and the position to draw for (int64) of the first `rows` rows."""
    floats, ints = places
    return *floats[:, :rows].unbind(), *ints[:, :rows].unbind()


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["slot_ptr"])
def _sampling(
    length_ptr: tl.tensor, temperature_ptr: tl.tensor, top_p_ptr: tl.tensor, min_p_ptr: tl.tensor, top_k_ptr: tl.tensor, seed_ptr: tl.tensor,
    slot_ptr: tl.tensor, floats_ptr: tl.tensor, ints_ptr: tl.tensor, rows: tl.tensor, STRIDE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    trigger(PDL)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    wait(PDL)
    slot = tl.load(slot_ptr + row, mask=inside, other=0)
    length = tl.load(length_ptr + slot)
    _columns(temperature_ptr, top_p_ptr, min_p_ptr, top_k_ptr, seed_ptr, slot, length, floats_ptr, ints_ptr, row, inside, STRIDE)


def sampling_columns(columns: Columns, slot_R: Tensor) -> tuple[Tensor, ...]:
    """temperature, top_p and min_p (float32), top_k, seed and the position to draw for (int64), one value per row."""
    rows, places = slot_R.shape[0], _places(slot_R)
    launch(
        _sampling, (cdiv(rows, BLOCK),), rows, columns.length, columns.temperature, columns.top_p, columns.min_p, columns.top_k, columns.seed,
        slot_R, *places, rows, STRIDE=places[0].shape[1], BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return _cut(places, rows)


@triton.jit(do_not_specialize=["rows"], do_not_specialize_on_alignment=["slot_ptr"])
def _finish(
    last_ptr: tl.tensor, failed_ptr: tl.tensor, slot_ptr: tl.tensor, token_ptr: tl.tensor, finite_ptr: tl.tensor, out_ptr: tl.tensor,
    turn_ptr: tl.tensor, post_ptr: tl.tensor, rows: tl.tensor, PLACES: tl.constexpr, WIDTH: tl.constexpr, FIRST: tl.constexpr,
    DUMMY: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    trigger(PDL)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    wait(PDL)
    slot = tl.load(slot_ptr + row, mask=inside, other=DUMMY)
    token = tl.load(token_ptr + row, mask=inside, other=0).to(tl.int32)
    good = (tl.load(finite_ptr + row, mask=inside, other=0) != 0) & (tl.load(failed_ptr + slot) == 0)
    tl.store(failed_ptr + slot, 1, mask=(slot < DUMMY) & (good == 0))
    tl.store(last_ptr + slot, tl.where(good, token, 0), mask=slot < DUMMY)
    tl.store(out_ptr + row, tl.where(good, token, -1), mask=inside)
    if PLACES > 0:
        turn = tl.load(turn_ptr, cache_modifier=".cg")
        place_ptr = post_ptr + (turn % PLACES) * WIDTH
        tl.store(place_ptr + FIRST + row, tl.where(good, token, -1), mask=inside)
        if tl.program_id(0) == 0:
            tl.store(place_ptr, turn)


def finish_rows(columns: Columns, slot_R: Tensor, token_R: Tensor, finite_R: Tensor, post: Tensor | None = None) -> Tensor:
    """Keep each row's sampled int64 token for its next step; gives int32 tokens [R], -1 where the row has failed, now or before.

    A failed row stays failed and is fed token 0. The tokens also go to `post`, int32 [a power of two of places, FIRST + at least R] of the host's
    memory: behind the turn in the place that is the turn's, modulo the places.
    """
    rows, dummy = slot_R.shape[0], columns.failed.shape[0] - 1
    out = torch.empty(rows, dtype=torch.int32, device=slot_R.device)
    launch(
        _finish, (cdiv(rows, BLOCK),), rows, columns.last, columns.failed, slot_R, token_R, finite_R.view(torch.uint8), out, columns.turn,
        post, rows, PLACES=0 if post is None else post.shape[0], WIDTH=0 if post is None else post.shape[1], FIRST=FIRST,
        DUMMY=dummy, BLOCK=BLOCK, num_warps=4,
    )  # fmt: skip
    return out
