"""Paged causal attention for chunks of prompts: FlashAttention-2 (Dao, 2023) in Triton, over keys found through the block table.

A program takes one key/value head and a tile of consecutive tokens, whose query heads are packed as rows of one matrix product: row r is head
r % G of token r // G. It reads the keys before the tile without masks, then those the causal border runs through.
"""

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from kernels.launch import LOG2E, launch, power_of_two, trigger, wait

TILE_ROWS = 128
"""Rows (tokens x query heads of one key/value head) of a program; with more than this many query heads, as many as there are."""


FEW_PROGRAMS = 132
"""With no more programs than an H200 has multiprocessors each does best with all of one's memory."""


class Settings(NamedTuple):
    """Tuning of the prefill kernel: keys of a tile, warps and pipeline stages.

    `one_loop`: all keys go through the loop with masks. The one without fuses a multiplication that the masks of the other keep apart, so that a
    token's bits depend on where its tile begins.
    """

    tile: int = 64
    warps: int = 8
    stages: int = 2
    one_loop: bool = False


def tile_tokens(group: int) -> int:
    """Tokens of one tile when a key/value head has `group` query heads."""
    return max(1, TILE_ROWS // group)


def halves(q_THD: Tensor, cache: Tensor) -> bool:
    """Whether products are of float16: it holds every number of a one-byte cache, and is converted to much faster than bfloat16."""
    return cache.itemsize == 1 and q_THD.itemsize == 2


@triton.jit
def _keys(
    q: tl.tensor, best: tl.tensor, total: tl.tensor, mixed: tl.tensor, k_ptr: tl.tensor, v_ptr: tl.tensor, blocks_ptr: tl.tensor,
    kv_head: tl.tensor, begin: tl.tensor, end: tl.tensor, own: tl.tensor, length: tl.tensor,
    window: tl.tensor, scale: tl.tensor, K: tl.constexpr, P: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, BN: tl.constexpr,
    MASKED: tl.constexpr, WINDOW: tl.constexpr,
) -> Any:  # fmt: skip
    """Go over key positions `begin`..`end`; rows at positions `own` see what is not after them and within the window."""
    column = tl.arange(0, WIDTH)
    key = tl.arange(0, BN)
    in_width = (column < D)[None, :]
    for start in tl.range(begin, end, BN):
        position = start + key
        if MASKED:
            block = tl.load(blocks_ptr + position // P, mask=position < length, other=0).to(tl.int64)
        else:
            block = tl.load(blocks_ptr + position // P).to(tl.int64)
        cell = ((block * K + kv_head) * P + position % P)[:, None] * D + column[None, :]
        if MASKED:
            there = (position < length)[:, None] & in_width
            if WINDOW:
                there = there & (position > tl.min(own, 0) - window)[:, None]
            k = tl.load(k_ptr + cell, mask=there, other=0.0)
            v = tl.load(v_ptr + cell, mask=there, other=0.0)
        elif D == WIDTH:
            k = tl.load(k_ptr + cell)
            v = tl.load(v_ptr + cell)
        else:
            k = tl.load(k_ptr + cell, mask=in_width, other=0.0)
            v = tl.load(v_ptr + cell, mask=in_width, other=0.0)
        score = tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * (scale * LOG2E)
        if MASKED:
            seen = position[None, :] <= own[:, None]
            if WINDOW:
                seen = seen & (position[None, :] > own[:, None] - window)
            score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(best, tl.max(score, 1))
        # A row that has seen no key yet has -inf here; its weights must be 0, not NaN.
        anchor = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(score - anchor[:, None])
        shrink = tl.exp2(best - anchor)
        total = total * shrink + tl.sum(weight, 1)
        mixed = tl.dot(weight.to(q.dtype), v.to(q.dtype), mixed * shrink[:, None], input_precision="ieee")
        best = higher
    return best, total, mixed


@triton.jit(do_not_specialize=["table_stride", "window"], do_not_specialize_on_alignment=["slot_ptr", "position_ptr", "tile_ptr"])
def _prefill(
    q_ptr: tl.tensor, k_ptr: tl.tensor, v_ptr: tl.tensor, out_ptr: tl.tensor, table_ptr: tl.tensor, slot_ptr: tl.tensor, position_ptr: tl.tensor,
    tile_ptr: tl.tensor,
    table_stride: tl.tensor, scale: tl.tensor, window: tl.tensor,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, P: tl.constexpr, WIDTH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, WINDOW: tl.constexpr, HALF: tl.constexpr, ONE_LOOP: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    trigger(PDL)
    G: tl.constexpr = H // K
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    wait(PDL)
    first = tl.load(tile_ptr + tile * 2).to(tl.int64)
    count = tl.load(tile_ptr + tile * 2 + 1)
    start = tl.load(position_ptr + first)
    blocks_ptr = table_ptr + tl.load(slot_ptr + first).to(tl.int64) * table_stride
    row = tl.arange(0, BM)
    column = tl.arange(0, WIDTH)
    member = row // G
    cell = ((first + member) * H + kv_head * G + row % G)[:, None] * D + column[None, :]
    inside = (member < count)[:, None] & (column < D)[None, :]
    q = tl.load(q_ptr + cell, mask=inside, other=0.0)
    if HALF:
        q = q.to(tl.float16)
    own = start + tl.minimum(member, count - 1)
    length = start + count
    best = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    mixed = tl.zeros([BM, WIDTH], tl.float32)
    border = (start + 1) // BN * BN
    if WINDOW:
        border = tl.maximum(start - window + 1, 0) // BN * BN
    elif ONE_LOOP:
        border = 0
    else:
        best, total, mixed = _keys(q, best, total, mixed, k_ptr, v_ptr, blocks_ptr, kv_head, 0, border, own, length, window, scale,
                                   K, P, D, WIDTH, BN, False, False)  # fmt: skip
    best, total, mixed = _keys(q, best, total, mixed, k_ptr, v_ptr, blocks_ptr, kv_head, border, length, own, length, window, scale,
                               K, P, D, WIDTH, BN, True, WINDOW)  # fmt: skip
    tl.store(out_ptr + cell, (mixed / total[:, None]).to(out_ptr.dtype.element_ty), mask=inside)


def settings_for(head_dim: int, programs: int, itemsize: int) -> Settings:
    """The settings measured best (bench/GPU.md) for elements of 2 bytes; larger ones fill the shared memory sooner."""
    if itemsize > 2:
        return Settings(tile=32, warps=8, stages=2)
    if programs <= FEW_PROGRAMS:
        return Settings(tile=128, warps=8, stages=2)
    return Settings(tile=64, warps=4, stages=3) if head_dim > 64 else Settings(tile=64, warps=8, stages=2)


def prefill(
    q_THD: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    table_NB: Tensor,
    slot_T: Tensor,
    position_T: Tensor,
    tiles: Tensor,
    window: int | None,
    scale: float,
    out_THD: Tensor,
    settings: Settings | None = None,
) -> None:
    """Softmax(q k^T * scale) v for the tokens of `tiles` [tiles, 2] (first token, count), into their rows of `out_THD`.

    A tile is consecutive tokens of one row, at most `tile_tokens`; its keys lie in blocks `table_NB[slot_T]` of the caches [blocks + 1, K, P, D].
    """
    _, heads, size = q_THD.shape
    _, kv_heads, block_size, _ = k_cache.shape
    chosen = settings or settings_for(size, len(tiles) * kv_heads, q_THD.itemsize)
    group = heads // kv_heads
    launch(
        _prefill, (len(tiles), kv_heads), len(q_THD),
        q_THD, k_cache, v_cache, out_THD, table_NB, slot_T, position_T, tiles, table_NB.stride(0), scale, window or 0,
        H=heads, K=kv_heads, D=size, P=block_size, WIDTH=power_of_two(size),
        BM=max(16, power_of_two(tile_tokens(group) * group)), BN=chosen.tile, WINDOW=window is not None,
        HALF=halves(q_THD, k_cache), ONE_LOOP=chosen.one_loop,
        num_warps=chosen.warps, num_stages=chosen.stages,
    )  # fmt: skip
