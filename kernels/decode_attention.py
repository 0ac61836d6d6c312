"""Paged attention for rows of one token: flash decoding (Dao et al., 2023) in Triton.

A program takes one key/value head of one row and a share of the row's keys, its query heads packed into one matrix product. Rows are split
by their own length, so that long rows do not hold up short ones; a second kernel merges the shares.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import LOG2E, launch, power_of_two, trigger, wait

MOST_SPLITS = 64
FILLING = 400
"""Programs that fill the device: about three for each of an H200's 132 multiprocessors."""
MANY = 1024
WHOLE = 1 << 30
"""A share that no row exceeds."""
BALANCED = 1.25
"""Longest row over the mean, up to which rows count as equally long."""
STEP = ["table_stride", "splits", "window"]
COLUMNS = ["slot_ptr", "position_ptr"]
"""Arguments that change from step to step: no kernel is compiled for their value or their alignment."""


class Settings(NamedTuple):
    """Tuning of the decode kernel: keys of a tile, warps, pipeline stages, and the fewest keys that are worth a share of their own."""

    tile: int = 64
    warps: int = 2
    stages: int = 2
    share: int = 512


@triton.jit
def _shares(
    position_ptr: tl.tensor, row: tl.tensor, splits: tl.tensor, window: tl.tensor, WINDOW: tl.constexpr, BN: tl.constexpr, SHARE: tl.constexpr
) -> Any:
    """Keys seen end at `length` and begin at `low`; tiles `first`..`last` hold them, in `parts` shares."""
    length = tl.load(position_ptr + row) + 1
    low = length * 0
    if WINDOW:
        low = tl.maximum(length - window, 0)
    first = low // BN
    last = tl.cdiv(length, BN)
    parts = tl.minimum(splits, tl.cdiv((last - first) * BN, SHARE))
    return length, low, first, last, parts


@triton.jit(do_not_specialize=STEP, do_not_specialize_on_alignment=COLUMNS)
def _decode(
    q_ptr: tl.tensor, k_ptr: tl.tensor, v_ptr: tl.tensor, out_ptr: tl.tensor, part_ptr: tl.tensor, weight_ptr: tl.tensor, table_ptr: tl.tensor,
    slot_ptr: tl.tensor, position_ptr: tl.tensor,
    table_stride: tl.tensor, scale: tl.tensor, splits: tl.tensor, window: tl.tensor,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, P: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    BN: tl.constexpr, SHARE: tl.constexpr, SPLIT: tl.constexpr, WINDOW: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    trigger(PDL)
    G: tl.constexpr = H // K
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    row = tl.program_id(2).to(tl.int64)
    wait(PDL)
    length, low, first, last, parts = _shares(position_ptr, row, splits, window, WINDOW, BN, SHARE)
    if split < parts:
        begin = first + split * (last - first) // parts
        end = first + (split + 1) * (last - first) // parts
        member = tl.arange(0, GROUP)
        column = tl.arange(0, WIDTH)
        key = tl.arange(0, BN)
        head = row * H + kv_head * G + member
        in_width = column < D
        is_head = (member < G)[:, None] & in_width[None, :]
        q = tl.load(q_ptr + head[:, None] * D + column[None, :], mask=is_head, other=0.0)
        blocks_ptr = table_ptr + tl.load(slot_ptr + row).to(tl.int64) * table_stride
        best = tl.full([GROUP], float("-inf"), tl.float32)
        total = tl.zeros([GROUP], tl.float32)
        mixed = tl.zeros([GROUP, WIDTH], tl.float32)
        position = begin * BN + key
        following = tl.load(blocks_ptr + position // P, mask=position < length, other=0)
        for tile in range(begin, end):
            position = tile * BN + key
            block = following.to(tl.int64)
            following = tl.load(blocks_ptr + (position + BN) // P, mask=position + BN < length, other=0)
            seen = position < length
            if WINDOW:
                seen = seen & (position >= low)
            cell = ((block * K + kv_head) * P + position % P)[:, None] * D + column[None, :]
            k = tl.load(k_ptr + cell) if D == WIDTH else tl.load(k_ptr + cell, mask=in_width[None, :], other=0.0)
            v = tl.load(v_ptr + cell, mask=seen[:, None] & in_width[None, :], other=0.0)
            score = tl.where(seen[None, :], tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * (scale * LOG2E), float("-inf"))
            higher = tl.maximum(best, tl.max(score, 1))
            weight = tl.exp2(score - higher[:, None])
            shrink = tl.exp2(best - higher)
            total = total * shrink + tl.sum(weight, 1)
            mixed = tl.dot(weight.to(q.dtype), v.to(q.dtype), mixed * shrink[:, None], input_precision="ieee")
            best = higher
        if SPLIT:
            if parts > 1:
                part = head * splits + split
                tl.store(part_ptr + part[:, None] * D + column[None, :], mixed, mask=is_head)
                tl.store(weight_ptr + part * 2, best, mask=member < G)
                tl.store(weight_ptr + part * 2 + 1, total, mask=member < G)
            else:
                tl.store(out_ptr + head[:, None] * D + column[None, :], (mixed / total[:, None]).to(out_ptr.dtype.element_ty), mask=is_head)
        else:
            tl.store(out_ptr + head[:, None] * D + column[None, :], (mixed / total[:, None]).to(out_ptr.dtype.element_ty), mask=is_head)


@triton.jit(do_not_specialize=STEP, do_not_specialize_on_alignment=COLUMNS)
def _merge(
    part_ptr: tl.tensor, weight_ptr: tl.tensor, out_ptr: tl.tensor, position_ptr: tl.tensor, splits: tl.tensor, window: tl.tensor,
    H: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, SPLITS: tl.constexpr,
    BN: tl.constexpr, SHARE: tl.constexpr, WINDOW: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    trigger(PDL)
    head = tl.program_id(0).to(tl.int64)
    share = tl.arange(0, SPLITS)
    column = tl.arange(0, WIDTH)
    wait(PDL)
    _length, _low, _first, _last, parts = _shares(position_ptr, head // H, splits, window, WINDOW, BN, SHARE)
    if parts > 1:
        part = head * splits + share
        there = share < parts
        best = tl.load(weight_ptr + part * 2, mask=there, other=float("-inf"))
        total = tl.load(weight_ptr + part * 2 + 1, mask=there, other=0.0)
        mixed = tl.load(part_ptr + part[:, None] * D + column[None, :], mask=there[:, None] & (column < D)[None, :], other=0.0)
        shrink = tl.exp2(best - tl.max(best, 0))
        out = tl.sum(mixed * shrink[:, None], 0) / tl.sum(total * shrink, 0)
        tl.store(out_ptr + head * D + column, out.to(out_ptr.dtype.element_ty), mask=column < D)


def settings_for(rows: int, kv_heads: int, balanced: bool) -> Settings:
    """The settings measured best (bench/GPU.md). `balanced`: the rows are about equally long, so that many of them need no shares."""
    programs = rows * kv_heads
    if programs < FILLING:
        return Settings(share=64 if programs <= FILLING // 16 else 128 if programs <= FILLING // 4 else 256)
    many = programs >= MANY
    if balanced:
        return Settings(tile=32, share=WHOLE) if many else Settings(share=WHOLE)
    return Settings(tile=128, warps=4) if many else Settings()


def splits_for(longest: int, programs: int, share: int) -> int:
    """Shares of the longest row: enough to fill the device, none smaller than `share` keys."""
    return max(1, min(MOST_SPLITS, -(-longest // share), -(-4 * FILLING // programs)))


def decode(
    q_RHD: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    table_NB: Tensor,
    slot_R: Tensor,
    position_R: Tensor,
    longest: int,
    window: int | None,
    scale: float,
    out_RHD: Tensor,
    balanced: bool = False,
    settings: Settings | None = None,
) -> None:
    """Softmax(q k^T * scale) v for rows of one token at `position_R`, whose keys lie in blocks `table_NB[slot_R]`, into `out_RHD`.

    `longest`: no row has more keys; `balanced`: none is much longer than the mean. q and out are contiguous, the caches [blocks + 1, K, P, D];
    sums are in float32.
    """
    rows, heads, size = q_RHD.shape
    _, kv_heads, block_size, _ = k_cache.shape
    chosen = settings or settings_for(rows, kv_heads, balanced)
    splits = splits_for(longest if window is None else min(longest, window + chosen.tile), rows * kv_heads, chosen.share)
    width, split = power_of_two(size), splits > 1
    parts = q_RHD.new_empty(rows * heads * splits * (size + 2) if split else 0, dtype=torch.float32)
    weights = parts[rows * heads * splits * size :]
    common = {"H": heads, "D": size, "WIDTH": width, "BN": chosen.tile, "SHARE": chosen.share, "WINDOW": window is not None}
    launch(
        _decode, (kv_heads, splits, rows), rows,
        q_RHD, k_cache, v_cache, out_RHD, parts, weights, table_NB, slot_R, position_R, table_NB.stride(0), scale, splits, window or 0,
        K=kv_heads, P=block_size, GROUP=max(16, power_of_two(heads // kv_heads)), SPLIT=split,
        num_warps=chosen.warps, num_stages=chosen.stages, **common,
    )  # fmt: skip
    if split:
        merged = power_of_two(splits)
        launch(_merge, (rows * heads,), rows, parts, weights, out_RHD, position_R, splits, window or 0,
               SPLITS=merged, num_warps=4 if merged > 8 else 1, **common)  # fmt: skip
