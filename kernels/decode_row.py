"""Norms, rotation, the write into the cache and attention for a few rows of one token, in one Triton kernel. Twin of kernels.reference.decode_row.

With few rows a step is bound by the time from one kernel to the next. So a program asks for the old keys and values of its share of a row
before it waits for the product that makes the row's new ones, and the last program to arrive at a head merges the shares, in order.
"""

import functools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.attention import AttentionBatch, attend, plan_shares
from kernels.launch import LOG2E, cdiv, launch, power_of_two, trigger, wait
from kernels.rope_kv import rope_kv

MOST_ROWS = 2
"""With more rows the time of a program counts, not the way from one kernel to the next: the separate kernels are faster (bench/GPU.md)."""
MOST_COUNTERS = 4096
STEP = ["table_stride", "splits", "window"]
COLUMNS = ["slot_ptr", "position_ptr"]
"""Arguments that change from step to step: no kernel is compiled for their value or their alignment."""


class Settings(NamedTuple):
    """Tuning: keys of a tile, warps, and most shares of a row."""

    tile: int = 16
    warps: int = 1
    shares: int = 32


@triton.jit
def _share(position: tl.tensor, split: tl.tensor, splits: tl.tensor, window: tl.tensor, WINDOW: tl.constexpr, BN: tl.constexpr) -> Any:
    """First key seen, tiles `begin`..`end` of this share, and how many shares there are."""
    low = tl.maximum(position + 1 - window, 0) if WINDOW else position * 0
    first = low // BN
    tiles = position // BN + 1 - first
    parts = tl.minimum(splits, tiles)
    return low, first + split * tiles // parts, first + (split + 1) * tiles // parts, parts


@triton.jit
def _tile(
    k_ptr: tl.tensor, v_ptr: tl.tensor, block: tl.tensor, token: tl.tensor, old: tl.tensor, kv_head: tl.tensor, column: tl.tensor,
    K: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
) -> Any:  # fmt: skip
    """Keys and values [BN, WIDTH] of the tokens that are `old`; not from the first-level cache, which may hold what earlier steps read."""
    cell = ((block.to(tl.int64) * K + kv_head) * P + token % P)[:, None] * D + column[None, :]
    there = old[:, None] & (column < D)[None, :]
    k = tl.load(k_ptr + cell, mask=there, other=0.0, cache_modifier=".cg")
    return k, tl.load(v_ptr + cell, mask=there, other=0.0, cache_modifier=".cg")


@triton.jit
def _gamma(norm_ptr: tl.tensor, column: tl.tensor, inside: tl.tensor, NORM: tl.constexpr) -> Any:
    """A norm's weight, in float32."""
    return tl.load(norm_ptr + column, mask=inside, other=0.0).to(tl.float32) if NORM else 1.0


@triton.jit
def _turn(
    x_ptr: tl.tensor, column: tl.tensor, mate: tl.tensor, inside: tl.tensor, gamma: tl.tensor, mate_gamma: tl.tensor, cos: tl.tensor, sin: tl.tensor,
    eps: tl.tensor, D: tl.constexpr, NORM: tl.constexpr,
) -> Any:  # fmt: skip
    """The head at `x_ptr` + `column`, whose other half is at `mate`, normed if NORM and rotated; in float32."""
    x = tl.load(x_ptr + column, mask=inside, other=0.0).to(tl.float32)
    other = tl.load(x_ptr + mate, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        inverse = tl.rsqrt(tl.sum(x * x, 0) / D + eps)
        x = x * inverse * gamma
        other = other * inverse * mate_gamma
    return x * cos + other * sin


@triton.jit
def _fold(q: tl.tensor, k: tl.tensor, v: tl.tensor, old: tl.tensor, scale: tl.tensor, best: tl.tensor, total: tl.tensor, mixed: tl.tensor) -> Any:
    """The online softmax over one more tile of keys that are `old`."""
    score = tl.where(old, tl.sum(k.to(tl.float32) * q.to(tl.float32)[None, :], 1) * scale, float("-inf"))
    higher = tl.maximum(best, tl.max(score, 0))
    weight = tl.exp2(score - higher)
    shrink = tl.exp2(best - higher)
    return higher, total * shrink + tl.sum(weight, 0), mixed * shrink + tl.sum(weight[:, None] * v.to(tl.float32), 0)


@triton.jit
def _merge(
    part_ptr: tl.tensor, weight_ptr: tl.tensor, out_ptr: tl.tensor, head: tl.tensor, splits: tl.tensor, parts: tl.tensor, column: tl.tensor,
    D: tl.constexpr, SPLITS: tl.constexpr,
) -> None:  # fmt: skip
    """All shares of one head, which other programs have just written."""
    share = tl.arange(0, SPLITS)
    there = share < parts
    part = head * splits + share
    best = tl.load(weight_ptr + part * 2, mask=there, other=float("-inf"), cache_modifier=".cg")
    total = tl.load(weight_ptr + part * 2 + 1, mask=there, other=0.0, cache_modifier=".cg")
    mixed = tl.load(part_ptr + part[:, None] * D + column[None, :], mask=there[:, None] & (column < D)[None, :], other=0.0, cache_modifier=".cg")
    shrink = tl.exp2(best - tl.max(best, 0))
    out = tl.sum(mixed * shrink[:, None], 0) / tl.sum(total * shrink, 0)
    tl.store(out_ptr + head * D + column, out.to(out_ptr.dtype.element_ty), mask=column < D)


@triton.jit(do_not_specialize=STEP, do_not_specialize_on_alignment=COLUMNS)
def _row(
    qkv_ptr: tl.tensor, q_norm_ptr: tl.tensor, k_norm_ptr: tl.tensor, cos_ptr: tl.tensor, sin_ptr: tl.tensor, k_ptr: tl.tensor, v_ptr: tl.tensor,
    out_ptr: tl.tensor, part_ptr: tl.tensor, weight_ptr: tl.tensor, counter_ptr: tl.tensor, table_ptr: tl.tensor, slot_ptr: tl.tensor,
    position_ptr: tl.tensor, table_stride: tl.tensor, splits: tl.tensor, window: tl.tensor, eps: tl.tensor, scale: tl.tensor,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, P: tl.constexpr, WIDTH: tl.constexpr, BN: tl.constexpr, SPLITS: tl.constexpr,
    NORM: tl.constexpr, WINDOW: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    """One share of a row for one query head. Programs without a share do not wait, but one of every head does and so the kernel."""
    trigger(PDL)
    row = tl.program_id(2).to(tl.int64)
    head = tl.program_id(0)
    kv_head = head // (H // K)
    position = tl.load(position_ptr + row, cache_modifier=".cg")
    low, begin, end, parts = _share(position, tl.program_id(1), splits, window, WINDOW, BN)
    if tl.program_id(1) >= parts:
        return
    newest = end == position // BN + 1
    blocks_ptr = table_ptr + tl.load(slot_ptr + row, cache_modifier=".cg").to(tl.int64) * table_stride
    column = tl.arange(0, WIDTH)
    token = begin * BN + tl.arange(0, BN)
    old = (token < position) & (token >= low)
    k, v = _tile(k_ptr, v_ptr, tl.load(blocks_ptr + token // P, mask=old, other=0, cache_modifier=".cg"), token, old, kv_head, column, K, D, P)
    token += BN
    following = tl.load(blocks_ptr + token // P, mask=(token < position) & (begin + 1 < end), other=0, cache_modifier=".cg")
    block = tl.load(blocks_ptr + position // P, cache_modifier=".cg").to(tl.int64)
    inside = column < D
    mate = tl.where(column < D // 2, column + D // 2, column - D // 2)
    cos = tl.load(cos_ptr + position.to(tl.int64) * D + column, mask=inside, other=0.0).to(tl.float32)
    sin = tl.load(sin_ptr + position.to(tl.int64) * D + column, mask=inside, other=0.0).to(tl.float32)
    q_gamma, q_mate = _gamma(q_norm_ptr, column, inside, NORM), _gamma(q_norm_ptr, mate, inside, NORM)
    k_gamma, k_mate = _gamma(k_norm_ptr, column, inside, NORM), _gamma(k_norm_ptr, mate, inside, NORM)
    wait(PDL)
    x_ptr = qkv_ptr + row * (H + 2 * K) * D
    q = _turn(x_ptr + head * D, column, mate, inside, q_gamma, q_mate, cos, sin, eps, D, NORM).to(qkv_ptr.dtype.element_ty)
    new_k = _turn(x_ptr + (H + kv_head) * D, column, mate, inside, k_gamma, k_mate, cos, sin, eps, D, NORM)
    new_k = new_k.to(k_ptr.dtype.element_ty)  # as later steps read them, in a cache of fewer bits too
    new_v = tl.load(x_ptr + (H + K + kv_head) * D + column, mask=inside, other=0.0).to(v_ptr.dtype.element_ty)
    scale *= LOG2E
    best = tl.where(newest, tl.sum(q.to(tl.float32) * new_k.to(tl.float32), 0) * scale, float("-inf"))
    total = tl.where(newest, 1.0, 0.0)
    mixed = tl.where(newest, new_v.to(tl.float32), 0.0)
    if newest & (head % (H // K) == 0):
        cell = ((block * K + kv_head) * P + position % P) * D + column
        tl.store(k_ptr + cell, new_k, mask=inside)
        tl.store(v_ptr + cell, new_v, mask=inside)
    best, total, mixed = _fold(q, k, v, old, scale, best, total, mixed)
    for tile in range(begin + 1, end):
        old = token < position
        k, v = _tile(k_ptr, v_ptr, following, token, old, kv_head, column, K, D, P)
        token += BN
        following = tl.load(blocks_ptr + token // P, mask=(token < position) & (tile + 1 < end), other=0, cache_modifier=".cg")
        best, total, mixed = _fold(q, k, v, old, scale, best, total, mixed)
    result = row * H + head
    if parts == 1:
        tl.store(out_ptr + result * D + column, (mixed / total).to(out_ptr.dtype.element_ty), mask=inside)
    else:
        part = result * splits + tl.program_id(1)
        tl.store(part_ptr + part * D + column, mixed, mask=inside)
        tl.store(weight_ptr + part * 2, best)
        tl.store(weight_ptr + part * 2 + 1, total)
        tl.debug_barrier()
        if tl.atomic_add(counter_ptr + result, 1, sem="acq_rel") == parts - 1:
            _merge(part_ptr, weight_ptr, out_ptr, result, splits, parts, column, D, SPLITS)
            tl.store(counter_ptr + result, 0)


@functools.cache
def _counters(device: torch.device) -> Tensor:
    """Counters, which every launch leaves at zero, one set for each device: launches on one stream do not overlap.

    The first call must not be part of a captured graph, whose memory they would be.
    """
    return torch.zeros(MOST_COUNTERS, dtype=torch.int32, device=device)


def rope_decode(
    qkv_RN: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    rope: tuple[Tensor, Tensor],
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    out_RHD: Tensor,
    settings: Settings | None = None,
) -> None:
    """`kernels.rope_kv.rope_kv` and attention, into `out_RHD`, for a batch of nothing but decode rows, R of them. qkv and out are contiguous.

    The kernel may read the batch's columns, the table and the cache while kernels of the same step before it still run: all of these but the
    new keys must have been written before the last launch that is not programmatically dependent.
    """
    rows, heads, size = out_RHD.shape
    _, kv_heads, block_size, _ = k_cache.shape
    chosen = settings or Settings()
    longest = batch.table.shape[1] * block_size
    span = longest if batch.window is None else min(longest, batch.window + chosen.tile)
    splits = max(1, min(chosen.shares, cdiv(span, chosen.tile)))
    parts = qkv_RN.new_empty(rows * heads * splits * (size + 2), dtype=torch.float32)
    weights = parts[rows * heads * splits * size :]
    q_norm, k_norm = (None, None) if norms is None else norms
    launch(
        _row, (heads, splits, rows), rows,
        qkv_RN, q_norm, k_norm, *rope, k_cache, v_cache, out_RHD, parts, weights, _counters(qkv_RN.device),
        batch.table, batch.slot, batch.position, batch.table.stride(0), splits, batch.window or 0, eps, scale,
        H=heads, K=kv_heads, D=size, P=block_size, WIDTH=power_of_two(size), BN=chosen.tile, SPLITS=power_of_two(splits),
        NORM=norms is not None, WINDOW=batch.window is not None, num_warps=chosen.warps, num_stages=1,
    )  # fmt: skip


def rope_attend(
    qkv_TN: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    rope: tuple[Tensor, Tensor],
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    out_THD: Tensor,
) -> None:
    """What comes between the products of a layer: attention of the step's tokens into `out_THD`, and their keys and values into the cache."""
    if batch.singles == len(qkv_TN) <= MOST_ROWS:
        rope_decode(qkv_TN, norms, eps, rope, k_cache, v_cache, batch, scale, out_THD)
        return
    plan_shares(batch, out_THD, k_cache)
    q_THD = rope_kv(qkv_TN, norms, eps, rope, k_cache, v_cache, batch)
    attend(q_THD, k_cache, v_cache, batch, scale, out_THD)
