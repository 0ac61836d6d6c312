"""Per-head norms, rotation and the write into the KV cache in one Triton kernel. Twin of kernels.reference.rope_kv.

A program takes some heads of one token, both halves of each, so that the rotation needs no second load. In steps of few tokens the kernel starts
while the product before it still runs, and lets attention start, which asks for old keys, when its own wait is over.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from kernels.attention import AttentionBatch
from kernels.launch import ALWAYS, NEVER, cdiv, launch, power_of_two, trigger, wait

LONG = 2048
"""Tokens of a step from which on the way from one kernel to the next counts for nothing."""


class Settings(NamedTuple):
    """Tuning: heads of one program and warps."""

    heads: int
    warps: int


def settings_for(tokens: int) -> Settings:
    """The settings measured best (bench/GPU.md)."""
    return Settings(8, 4) if tokens < 128 else Settings(16, 8) if tokens < LONG else Settings(32, 4)


@triton.jit
def _weight(q_norm_ptr: tl.tensor, k_norm_ptr: tl.tensor, is_q: tl.tensor, is_k: tl.tensor, column: tl.tensor, inside: tl.tensor) -> Any:
    """Norm weights [heads, half]; 1 for values."""
    q = tl.load(q_norm_ptr + column, mask=inside, other=0.0).to(tl.float32)
    k = tl.load(k_norm_ptr + column, mask=inside, other=0.0).to(tl.float32)
    return tl.where(is_q[:, None], q[None, :], tl.where(is_k[:, None], k[None, :], 1.0))


@triton.jit(do_not_specialize=["table_stride"], do_not_specialize_on_alignment=["slot_ptr", "position_ptr"])
def _rope_kv(
    qkv_ptr: tl.tensor, q_norm_ptr: tl.tensor, k_norm_ptr: tl.tensor, cos_ptr: tl.tensor, sin_ptr: tl.tensor, q_ptr: tl.tensor, k_ptr: tl.tensor,
    v_ptr: tl.tensor,
    table_ptr: tl.tensor, slot_ptr: tl.tensor, position_ptr: tl.tensor, table_stride: tl.tensor, eps: tl.tensor,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, P: tl.constexpr,
    HEADS: tl.constexpr, HALF: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    column = tl.arange(0, HALF)
    in_half = column < D // 2
    is_q = head < H
    is_k = (head >= H) & (head < H + K)
    inside = (head < H + 2 * K)[:, None] & in_half[None, :]
    # Not from the first-level cache, which may hold what earlier kernels read.
    position = tl.load(position_ptr + token, cache_modifier=".cg").to(tl.int64)
    slot = tl.load(slot_ptr + token, cache_modifier=".cg").to(tl.int64)
    block = tl.load(table_ptr + slot * table_stride + position // P, cache_modifier=".cg").to(tl.int64)
    turned = (is_q | is_k)[:, None]
    cos = tl.load(cos_ptr + position * D + column, mask=in_half, other=0.0).to(tl.float32)[None, :]
    sin = tl.load(sin_ptr + position * D + D // 2 + column, mask=in_half, other=0.0).to(tl.float32)[None, :]
    if NORM:
        weight = _weight(q_norm_ptr, k_norm_ptr, is_q, is_k, column, in_half)
        weight_high = _weight(q_norm_ptr + D // 2, k_norm_ptr + D // 2, is_q, is_k, column, in_half)
    wait(PDL)
    trigger(PDL)
    cell = (token * (H + 2 * K) + head)[:, None] * D + column[None, :]
    low = tl.load(qkv_ptr + cell, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(qkv_ptr + cell + D // 2, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1)) / D + eps)
        scale = tl.where(is_q | is_k, scale, 1.0)[:, None]
        low = low * scale * weight
        high = high * scale * weight_high
    first = tl.where(turned, low * cos - high * sin, low)
    second = tl.where(turned, high * cos + low * sin, high)
    q_cell = (token * H + head)[:, None] * D + column[None, :]
    to_q = inside & is_q[:, None]
    tl.store(q_ptr + q_cell, first.to(q_ptr.dtype.element_ty), mask=to_q)
    tl.store(q_ptr + q_cell + D // 2, second.to(q_ptr.dtype.element_ty), mask=to_q)
    kv_head = tl.where(is_k, head - H, head - H - K)
    kv_cell = ((block * K + kv_head) * P + position % P)[:, None] * D + column[None, :]
    to_k = inside & is_k[:, None]
    tl.store(k_ptr + kv_cell, first.to(k_ptr.dtype.element_ty), mask=to_k)
    tl.store(k_ptr + kv_cell + D // 2, second.to(k_ptr.dtype.element_ty), mask=to_k)
    to_v = inside & (head >= H + K)[:, None]
    tl.store(v_ptr + kv_cell, first.to(v_ptr.dtype.element_ty), mask=to_v)
    tl.store(v_ptr + kv_cell + D // 2, second.to(v_ptr.dtype.element_ty), mask=to_v)


def rope_rows(cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """The whole tables: the kernel looks up the rows by the batch's positions."""
    return cos, sin


def rope_kv(
    qkv_TN: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    rope: tuple[Tensor, Tensor],
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    settings: Settings | None = None,
) -> Tensor:
    """The rotated queries [T, H, D] of the contiguous `qkv_TN` [T, (H + 2K) D]; its keys, rotated too, and values go into one layer's cache.

    `norms`: weights [D] of the RMSNorm of every query and key head before the rotation. The norm and the rotation are in float32. The batch's
    columns and the table must have been written before the last launch that is not programmatically dependent.
    """
    _, kv_heads, block_size, size = k_cache.shape
    tokens, total = qkv_TN.shape[0], qkv_TN.shape[1] // size
    q_THD = qkv_TN.new_empty(tokens, total - 2 * kv_heads, size)
    q_norm, k_norm = (None, None) if norms is None else norms
    chosen = settings or settings_for(tokens)
    heads = min(chosen.heads, power_of_two(total))
    launch(
        _rope_kv, (tokens, cdiv(total, heads)), ALWAYS if tokens < LONG else NEVER,
        qkv_TN, q_norm, k_norm, *rope, q_THD, k_cache, v_cache,
        batch.table, batch.slot, batch.position, batch.table.stride(0), eps,
        H=total - 2 * kv_heads, K=kv_heads, D=size, P=block_size,
        HEADS=heads, HALF=power_of_two(size // 2), NORM=norms is not None, num_warps=chosen.warps,
    )  # fmt: skip
    return q_THD
