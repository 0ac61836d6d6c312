"""Paged causal attention for chunks of prompts on Hopper GPUs, in Gluon: FlashAttention-3 (Shah et al., 2024) over keys in blocks.

A program takes item after item (a tile of tokens and a key/value head). One warp brings queries, keys and values into shared memory, block by
block, through the tensor memory accelerator, and runs ahead into the next item. Two groups of four warps take half of the tile's rows each, where
row r is query head r % G of token r // G, so that one group's softmax runs beside the other's matrix products.
"""

from typing import NamedTuple

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from kernels.hopper import cells_of, rows_of
from kernels.hopper_softmax import fold
from kernels.launch import LOG2E, run

PROCESSORS = 132
ROWS = 64
"""Rows of a group of warps."""
WARPS = gl.constexpr(4)
REGISTERS = gl.constexpr(232)
FEW_REGISTERS = gl.constexpr(40)
"""Of a thread of the groups that multiply, and of the one that brings: of the 168 that each of the 384 threads begins with."""


class Settings(NamedTuple):
    """Tuning: keys of a tile, and tiles of keys and of values in shared memory."""

    tile: int = 128
    stages: int = 2


@gluon.jit
def _item(
    number: gl.tensor, heads: gl.tensor, tile_ptr: gl.tensor, position_ptr: gl.tensor, slot_ptr: gl.tensor, programs: gl.tensor, tiles: gl.tensor
) -> gl.tuple:
    """Item of round `number` of this program: whether there is one, its head, first token, tokens, first position, slot.

    The tiles come by falling cost, and every other round runs backwards: programs get about the same in sum.
    """
    program = gl.program_id(0)
    index = number * programs + gl.where(number % 2 == 0, program, programs - 1 - program)
    tile = index // heads
    kv_head = index % heads
    there = tile < tiles
    first = gl.load(tile_ptr + tile * 2, mask=there, other=0)
    count = gl.load(tile_ptr + tile * 2 + 1, mask=there, other=0)
    return there, kv_head, first, count, gl.load(position_ptr + first), gl.load(slot_ptr + first)


@gluon.jit
def _bring(
    q_desc: gl.tensor, k_desc: gl.tensor, v_desc: gl.tensor, q_smem: gl.tensor, k_smem: gl.tensor, v_smem: gl.tensor,
    bars: gl.tuple, pointers: gl.tuple, numbers: gl.tuple,
    G: gl.constexpr, K: gl.constexpr, D: gl.constexpr, P: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
) -> None:  # fmt: skip
    q_ready, q_empty, k_ready, k_empty, v_ready, v_empty, _v_clear = bars
    table_ptr, slot_ptr, position_ptr, tile_ptr = pointers
    tiles, table_stride, programs, cells = numbers
    C: gl.constexpr = D // 64
    N: gl.constexpr = BN // 16
    done = 0
    rounds = gl.cdiv(tiles * K, programs)
    for number in range(rounds):
        there, kv_head, first, count, start, slot = _item(number, K, tile_ptr, position_ptr, slot_ptr, programs, tiles)
        if there:
            length = start + count
            blocks_ptr = table_ptr + slot.to(gl.int64) * table_stride
            mbarrier.wait(q_empty, number & 1 ^ 1)
            mbarrier.expect(q_ready, 2 * 64 * D * 2)
            for part in gl.static_range(2):
                for c in gl.static_range(C):
                    tma.async_copy_global_to_shared(
                        q_desc, [first + part * (64 // G), kv_head * G, c * 64], q_ready, q_smem.index(part * C + c)
                    )
            for step in range(gl.cdiv(length, BN)):
                stage = done % STAGES
                phase = done // STAGES & 1 ^ 1
                cell: gl.tuple = ()
                for n in gl.static_range(N):
                    position = step * BN + n * 16
                    block = gl.load(blocks_ptr + position // P, mask=position < length, other=0)
                    # Past the end of the cache the copy writes zeros.
                    cell += (gl.where(position < length, (block * K + kv_head) * P + position % P, cells),)
                mbarrier.wait(k_empty.index(stage), phase)
                mbarrier.expect(k_ready.index(stage), BN * D * 2)
                for n in gl.static_range(N):
                    for c in gl.static_range(C):
                        tma.async_copy_global_to_shared(k_desc, [cell[n], c * 64], k_ready.index(stage), k_smem.index((stage * C + c) * N + n))
                mbarrier.wait(v_empty.index(stage), phase)
                mbarrier.expect(v_ready.index(stage), BN * D * 2)
                for n in gl.static_range(N):
                    for c in gl.static_range(C):
                        tma.async_copy_global_to_shared(v_desc, [cell[n], c * 64], v_ready.index(stage), v_smem.index((stage * C + c) * N + n))
                done += 1


@gluon.jit
def _softmax(
    s: gl.tensor, best: gl.tensor, total: gl.tensor, own: gl.tensor, step: gl.tensor, start: gl.tensor, qk_scale: gl.tensor,
    BN: gl.constexpr, S_LAYOUT: gl.constexpr, P_LAYOUT: gl.constexpr, dtype: gl.constexpr,
) -> gl.tuple:  # fmt: skip
    if (step + 1) * BN > start + 1:
        key = step * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, S_LAYOUT))
        s = gl.where(key[None, :] <= own[:, None], s, float("-inf"))
    weight, higher, total, shrink = fold(s, best, total, qk_scale)
    return gl.convert_layout(weight.to(dtype), P_LAYOUT), higher, total, shrink


@gluon.jit
def _work(
    q_tiles: gl.tensor, k_tiles: gl.tensor, v_tiles: gl.tensor, v_smem: gl.tensor, bars: gl.tuple, pointers: gl.tuple, numbers: gl.tuple,
    out_ptr: gl.tensor, qk_scale: gl.tensor,
    part: gl.constexpr, H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
) -> None:  # fmt: skip
    G: gl.constexpr = H // K
    N: gl.constexpr = BN // 16
    C: gl.constexpr = D // 64
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    TINY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    dtype: gl.constexpr = q_tiles.dtype
    q_ready, q_empty, k_ready, k_empty, v_ready, v_empty, v_clear = bars
    _table_ptr, slot_ptr, position_ptr, tile_ptr = pointers
    tiles, _table_stride, programs, _cells = numbers
    q = q_tiles.index(part)
    done = 0
    cleared = 0
    rounds = gl.cdiv(tiles * K, programs)
    for number in range(rounds):
        there, kv_head, first, count, start, _slot = _item(number, K, tile_ptr, position_ptr, slot_ptr, programs, tiles)
        if there:
            length = start + count
            steps = gl.cdiv(length, BN)
            own = start + (part * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, S_LAYOUT))) // G
            best = gl.full([64], float("-inf"), gl.float32, layout=gl.SliceLayout(1, S_LAYOUT))
            total = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, S_LAYOUT))
            zero = gl.zeros([64, BN], gl.float32, layout=S_LAYOUT)
            o = gl.zeros([64, D], gl.float32, layout=O_LAYOUT)
            mbarrier.wait(q_ready, number & 1)
            stage = done % STAGES
            mbarrier.wait(k_ready.index(stage), done // STAGES & 1)
            s = warpgroup_mma(q, k_tiles.index(stage).permute((1, 0)), zero, use_acc=False, is_async=True)
            s = warpgroup_mma_wait(0, deps=(s,))
            mbarrier.arrive(k_empty.index(stage), count=1)
            p, best, total, shrink = _softmax(s, best, total, own, 0, start, qk_scale, BN, S_LAYOUT, P_LAYOUT, dtype)
            for step in range(1, steps):
                after = done + 1
                next_stage = after % STAGES
                mbarrier.wait(k_ready.index(next_stage), after // STAGES & 1)
                s = warpgroup_mma(q, k_tiles.index(next_stage).permute((1, 0)), zero, use_acc=False, is_async=True)
                mbarrier.wait(v_ready.index(stage), done // STAGES & 1)
                o = warpgroup_mma(p, v_tiles.index(stage), o, is_async=True)
                s = warpgroup_mma_wait(1, deps=(s,))
                mbarrier.arrive(k_empty.index(next_stage), count=1)
                next_p, best, total, shrink = _softmax(s, best, total, own, step, start, qk_scale, BN, S_LAYOUT, P_LAYOUT, dtype)
                o, p = warpgroup_mma_wait(0, deps=(o, p))
                mbarrier.arrive(v_empty.index(stage), count=1)
                o = o * gl.convert_layout(shrink, gl.SliceLayout(1, O_LAYOUT))[:, None]
                p = next_p
                done = after
                stage = next_stage
            mbarrier.arrive(q_empty, count=1)
            mbarrier.wait(v_ready.index(stage), done // STAGES & 1)
            if length % 16 != 0:
                # What lies after the last key in its block may be NaN, which a weight of 0 does not hide. One group clears it for both.
                if part == 0:
                    left = length % 16
                    for c in gl.static_range(C):
                        block = v_smem.index((stage * C + c) * N + length % BN // 16)
                        row = gl.arange(0, 16, layout=gl.SliceLayout(1, TINY))
                        v = block.load(TINY)
                        block.store(gl.where((row < left)[:, None], v, gl.zeros([16, 64], dtype, layout=TINY)))
                    fence_async_shared()
                    mbarrier.arrive(v_clear.index(cleared & 1), count=1)
                else:
                    mbarrier.wait(v_clear.index(cleared & 1), cleared >> 1 & 1)
                cleared += 1
            o = warpgroup_mma(p, v_tiles.index(stage), o, is_async=True)
            o, p = warpgroup_mma_wait(0, deps=(o, p))
            mbarrier.arrive(v_empty.index(stage), count=1)
            done += 1
            row = part * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, O_LAYOUT))
            column = gl.arange(0, D, layout=gl.SliceLayout(0, O_LAYOUT))
            cell = ((first + row // G).to(gl.int64) * H + kv_head * G + row % G)[:, None] * D + column[None, :]
            o = o / gl.convert_layout(total, gl.SliceLayout(1, O_LAYOUT))[:, None]
            gl.store(out_ptr + cell, o.to(dtype), mask=(row // G < count)[:, None])


@gluon.jit(do_not_specialize=["tiles", "table_stride", "programs", "cells"], do_not_specialize_on_alignment=["slot_ptr", "position_ptr", "tile_ptr"])
def _hopper_prefill(
    q_desc: gl.tensor, k_desc: gl.tensor, v_desc: gl.tensor, out_ptr: gl.tensor, table_ptr: gl.tensor, slot_ptr: gl.tensor, position_ptr: gl.tensor,
    tile_ptr: gl.tensor, tiles: gl.tensor, table_stride: gl.tensor, programs: gl.tensor, cells: gl.tensor, scale: gl.tensor,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, P: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr,
) -> None:  # fmt: skip
    G: gl.constexpr = H // K
    C: gl.constexpr = D // 64
    N: gl.constexpr = BN // 16
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    BAR: gl.constexpr = mbarrier.MBarrierLayout()
    dtype: gl.constexpr = q_desc.dtype
    q_smem = gl.allocate_shared_memory(dtype, [2 * C, 64 // G, G, 64], q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES * C * N, 16, 64], LAYOUT)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES * C * N, 16, 64], LAYOUT)
    q_tiles = q_smem._reinterpret(dtype, [2, 64, D], LAYOUT)
    k_tiles = k_smem._reinterpret(dtype, [STAGES, BN, D], LAYOUT)
    v_tiles = v_smem._reinterpret(dtype, [STAGES, BN, D], LAYOUT)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], BAR)
    q_empty = gl.allocate_shared_memory(gl.int64, [1], BAR)
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BAR)
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BAR)
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BAR)
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], BAR)
    # Two, as the group that clears may be one item ahead of the other: no more, both must have left an item's queries before the next but one.
    v_clear = gl.allocate_shared_memory(gl.int64, [2, 1], BAR)
    mbarrier.init(q_ready, count=1)
    mbarrier.init(q_empty, count=2)
    for i in gl.static_range(2):
        mbarrier.init(v_clear.index(i), count=1)
    for i in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_ready.index(i), count=1)
        mbarrier.init(v_empty.index(i), count=2)
    bars = (q_ready, q_empty, k_ready, k_empty, v_ready, v_empty, v_clear)
    pointers = (table_ptr, slot_ptr, position_ptr, tile_ptr)
    numbers = (tiles, table_stride, programs, cells)
    qk_scale = scale * LOG2E
    gl.warp_specialize([
        (_work, (q_tiles, k_tiles, v_tiles, v_smem, bars, pointers, numbers, out_ptr, qk_scale, 0, H, K, D, BN, STAGES)),
        (_work, (q_tiles, k_tiles, v_tiles, v_smem, bars, pointers, numbers, out_ptr, qk_scale, 1, H, K, D, BN, STAGES)),
        (_bring, (q_desc, k_desc, v_desc, q_smem, k_smem, v_smem, bars, pointers, numbers, G, K, D, P, BN, STAGES)),
    ], [WARPS, 1], [REGISTERS, FEW_REGISTERS])  # fmt: skip


def prefill(
    q_THD: Tensor, k_cache: Tensor, v_cache: Tensor, table_NB: Tensor, slot_T: Tensor, position_T: Tensor, tiles: Tensor, scale: float,
    out_THD: Tensor, settings: Settings | None = None,
) -> None:  # fmt: skip
    """As kernels.prefill_attention.prefill, for what kernels.hopper `fits`; the rows of a tile are at most 2 * `ROWS`."""
    _, heads, size = q_THD.shape
    _, kv_heads, block_size, _ = k_cache.shape
    chosen = settings or (Settings() if size > 64 else Settings(tile=64, stages=4))
    programs = min(PROCESSORS, len(tiles) * kv_heads)
    run(
        _hopper_prefill, (programs,),
        rows_of(q_THD, ROWS, heads // kv_heads), cells_of(k_cache), cells_of(v_cache), out_THD, table_NB, slot_T, position_T, tiles,
        len(tiles), table_NB.stride(0), programs, k_cache.numel() // size, scale,
        H=heads, K=kv_heads, D=size, P=block_size, BN=chosen.tile, STAGES=chosen.stages, num_warps=4, maxnreg=168,
    )  # fmt: skip
