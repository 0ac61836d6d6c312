"""Paged attention for rows of one token on Hopper GPUs, in Gluon: the shares of kernels.decode_attention, as one stream of tiles each.

A program is one warp. It brings the tiles of its share into a ring in shared memory through the tensor memory accelerator, always a few tiles
ahead, also over the ends of items, so that memory is never idle between rows of different lengths. The first tiles of old keys are asked for before
the kernel waits for the one that writes the new ones.
"""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

from kernels.hopper import cells_of
from kernels.hopper_softmax import fold
from kernels.launch import ALWAYS, LOG2E, launch
from kernels.ring import wait_and_trigger

barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier  # from triton 3.7, and before


@gluon.jit
def _cells(
    blocks_ptr: gl.tensor, tile: gl.tensor, length: gl.tensor, kv_head: gl.tensor, cells: gl.tensor,
    K: gl.constexpr, P: gl.constexpr, BN: gl.constexpr, CACHE: gl.constexpr,
) -> gl.tuple:  # fmt: skip
    """Where the blocks of a tile begin; past the end of the cache, where a copy writes zeros, if the row ends before."""
    found: gl.tuple = ()
    for n in gl.static_range(BN // 16):
        position = tile * BN + n * 16
        block = gl.load(blocks_ptr + position // P, mask=position < length, other=0, cache_modifier=CACHE)
        found += (gl.where(position < length, (block * K + kv_head) * P + position % P, cells),)
    return found


@gluon.jit
def _bring(
    k_desc: gl.tensor, v_desc: gl.tensor, k_smem: gl.tensor, v_smem: gl.tensor, ready: gl.tensor, stage: gl.tensor, found: gl.tuple,
    D: gl.constexpr, BN: gl.constexpr,
) -> None:  # fmt: skip
    N: gl.constexpr = BN // 16
    C: gl.constexpr = D // 64
    mbarrier.expect(ready.index(stage), 2 * BN * D * 2)
    for n in gl.static_range(N):
        for c in gl.static_range(C):
            tma.async_copy_global_to_shared(k_desc, [found[n], c * 64], ready.index(stage), k_smem.index((stage * C + c) * N + n))
            tma.async_copy_global_to_shared(v_desc, [found[n], c * 64], ready.index(stage), v_smem.index((stage * C + c) * N + n))


@gluon.jit
def _next(
    row: gl.tensor, head: gl.tensor, tile: gl.tensor, tiles: gl.tensor, slot: gl.tensor, length: gl.tensor, slot_ptr: gl.tensor,
    position_ptr: gl.tensor, more: gl.tensor, K: gl.constexpr, BN: gl.constexpr,
) -> gl.tuple:  # fmt: skip
    """The tile after this one: in the same item, in the row's next head, or in the next row."""
    tile += 1
    if tile == tiles:
        tile = 0
        head += 1
        if head == K:
            head = 0
            row += 1
            slot = gl.load(slot_ptr + row, mask=more, other=0)
            length = gl.load(position_ptr + row, mask=more, other=0) + 1
            tiles = (length + BN - 1) // BN
    return row, head, tile, tiles, slot, length


@gluon.jit
def _query(
    q_ptr: gl.tensor, row: gl.tensor, head: gl.tensor, H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, A: gl.constexpr
) -> gl.tensor:
    G: gl.constexpr = H // K
    member = gl.arange(0, 16, layout=gl.SliceLayout(1, A))
    column = gl.arange(0, D, layout=gl.SliceLayout(0, A))
    cell = (row.to(gl.int64) * H + head * G) * D
    return gl.load(q_ptr + cell + member[:, None] * D + column[None, :], mask=(member < G)[:, None] & (column < D)[None, :], other=0.0)


@gluon.jit(do_not_specialize=["table_stride", "cells"], do_not_specialize_on_alignment=["slot_ptr", "position_ptr"])
def _hopper_decode(
    q_ptr: gl.tensor, k_desc: gl.tensor, v_desc: gl.tensor, out_ptr: gl.tensor, part_ptr: gl.tensor, weight_ptr: gl.tensor, table_ptr: gl.tensor,
    slot_ptr: gl.tensor, position_ptr: gl.tensor, share_ptr: gl.tensor, arrived_ptr: gl.tensor, table_stride: gl.tensor, scale: gl.tensor,
    cells: gl.tensor,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, P: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, WORDS: gl.constexpr,
    MERGING: gl.constexpr, EARLY: gl.constexpr, PDL: gl.constexpr,
) -> None:  # fmt: skip
    G: gl.constexpr = H // K
    C: gl.constexpr = D // 64
    N: gl.constexpr = BN // 16
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    MMA: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, 1], [16, 8])
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 2)
    B: gl.constexpr = gl.DotOperandLayout(1, MMA, 2)
    dtype: gl.constexpr = k_desc.dtype
    k_smem = gl.allocate_shared_memory(dtype, [STAGES * C * N, 16, 64], LAYOUT)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES * C * N, 16, 64], LAYOUT)
    k_tiles = k_smem._reinterpret(dtype, [STAGES, BN, D], LAYOUT)
    v_tiles = v_smem._reinterpret(dtype, [STAGES, BN, D], LAYOUT)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
    fence_async_shared()
    share = gl.program_id(0)
    words_ptr = share_ptr + share * WORDS
    if PDL and not EARLY:
        wait_and_trigger()
    # Not from the first-level cache, which may hold what earlier kernels read.
    row = gl.load(words_ptr, cache_modifier=".cg")
    slot = gl.load(words_ptr + 1, cache_modifier=".cg")
    length = gl.load(words_ptr + 2, cache_modifier=".cg")
    head = gl.load(words_ptr + 3, cache_modifier=".cg")
    tile = gl.load(words_ptr + 4, cache_modifier=".cg")
    count = gl.load(words_ptr + 5, cache_modifier=".cg")
    tiles = (length + BN - 1) // BN
    asked = 0  # tiles on their way before the wait: of the first item, without its newest key
    if PDL and EARLY:
        asked = gl.minimum(gl.minimum(count, tiles - 1 - tile), STAGES)
        blocks_ptr = table_ptr + slot.to(gl.int64) * table_stride
        for i in gl.static_range(STAGES):
            if i < asked:
                found = _cells(blocks_ptr, tile + i, length, head, cells, K, P, BN, ".cg")
                _bring(k_desc, v_desc, k_smem, v_smem, ready, i, found, D, BN)
        wait_and_trigger()
    if count > 0:
        # What is brought next is STAGES tiles ahead of what is looked at.
        to_row, to_head, to_tile, to_tiles, to_slot, to_length = row, head, tile, tiles, slot, length
        for i in gl.static_range(STAGES):
            if i < count:
                if i >= asked:
                    blocks_ptr = table_ptr + to_slot.to(gl.int64) * table_stride
                    found = _cells(blocks_ptr, to_tile, to_length, to_head, cells, K, P, BN, "")
                    _bring(k_desc, v_desc, k_smem, v_smem, ready, i, found, D, BN)
                to_row, to_head, to_tile, to_tiles, to_slot, to_length = _next(
                    to_row, to_head, to_tile, to_tiles, to_slot, to_length, slot_ptr, position_ptr, i + 1 < count, K, BN
                )  # fmt: skip
        q = _query(q_ptr, row, head, H, K, D, A)
        best = gl.full([16], float("-inf"), gl.float32, layout=gl.SliceLayout(1, MMA))
        total = gl.zeros([16], gl.float32, layout=gl.SliceLayout(1, MMA))
        mixed = gl.zeros([16, D], gl.float32, layout=MMA)
        nothing = gl.zeros([16, BN], gl.float32, layout=MMA)
        began = tile
        for step in range(count):
            stage = step % STAGES
            more = step + STAGES < count
            blocks_ptr = table_ptr + to_slot.to(gl.int64) * table_stride
            found = _cells(blocks_ptr, to_tile, gl.where(more, to_length, 0), to_head, cells, K, P, BN, "")
            mbarrier.wait(ready.index(stage), step // STAGES & 1)
            k = k_tiles.index(stage).permute((1, 0)).load(B)
            v = v_tiles.index(stage).load(B)
            score = mma_v2(q, k, nothing)
            if (tile + 1) * BN > length:
                key = tile * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, MMA))
                score = gl.where((key < length)[None, :], score, float("-inf"))
                key = tile * BN + gl.arange(0, BN, layout=gl.SliceLayout(1, B))
                v = gl.where((key < length)[:, None], v, gl.zeros([BN, D], dtype, layout=B))
            weight, best, total, shrink = fold(score, best, total, scale * LOG2E)
            mixed = mma_v2(gl.convert_layout(weight.to(dtype), A), v, mixed * shrink[:, None])
            fence_async_shared()
            if more:
                _bring(k_desc, v_desc, k_smem, v_smem, ready, stage, found, D, BN)
                to_row, to_head, to_tile, to_tiles, to_slot, to_length = _next(
                    to_row, to_head, to_tile, to_tiles, to_slot, to_length, slot_ptr, position_ptr, step + STAGES + 1 < count, K, BN
                )  # fmt: skip
            last = step + 1 == count
            if (tile + 1 == tiles) | last:
                member = gl.arange(0, 16, layout=gl.SliceLayout(1, MMA))
                column = gl.arange(0, D, layout=gl.SliceLayout(0, MMA))
                is_head = (member < G)[:, None] & (column < D)[None, :]
                if (began == 0) & (tile + 1 == tiles):
                    cell = (row.to(gl.int64) * H + head * G) * D
                    result = (mixed / total[:, None]).to(dtype)
                    gl.store(out_ptr + cell + member[:, None] * D + column[None, :], result, mask=is_head)
                else:
                    part = (share * 2 + (began == 0).to(gl.int32)) * G + member
                    gl.store(part_ptr + part[:, None] * D + column[None, :], mixed, mask=is_head)
                    gl.store(weight_ptr + part * 2, best, mask=member < G)
                    gl.store(weight_ptr + part * 2 + 1, total, mask=member < G)
                    if MERGING:
                        barrier()
                        second = share + 1
                        if began > 0:
                            second = gl.load(words_ptr + 7)
                        pieces = gl.load(share_ptr + second * WORDS + 6)
                        if gl.atomic_add(arrived_ptr + second, 1, sem="acq_rel") == pieces:
                            part = (second * 2 - 1) * G + member
                            best = gl.load(weight_ptr + part * 2, mask=member < G, other=0.0, cache_modifier=".cg")
                            total = gl.load(weight_ptr + part * 2 + 1, mask=member < G, other=1.0, cache_modifier=".cg")
                            mixed = gl.load(part_ptr + part[:, None] * D + column[None, :], mask=is_head, other=0.0, cache_modifier=".cg")
                            for piece in range(pieces):
                                part = (second + piece) * 2 * G + member
                                top = gl.load(weight_ptr + part * 2, mask=member < G, other=0.0, cache_modifier=".cg")
                                sum_ = gl.load(weight_ptr + part * 2 + 1, mask=member < G, other=1.0, cache_modifier=".cg")
                                mix = gl.load(part_ptr + part[:, None] * D + column[None, :], mask=is_head, other=0.0, cache_modifier=".cg")
                                above = gl.maximum(best, top)
                                kept = gl.exp2(best - above)
                                added = gl.exp2(top - above)
                                total = total * kept + sum_ * added
                                mixed = mixed * kept[:, None] + mix * added[:, None]
                                best = above
                            cell = (row.to(gl.int64) * H + head * G) * D
                            gl.store(out_ptr + cell + member[:, None] * D + column[None, :], (mixed / total[:, None]).to(dtype), mask=is_head)
                            gl.store(arrived_ptr + second, 0)
                row, head, tile, tiles, slot, length = _next(row, head, tile, tiles, slot, length, slot_ptr, position_ptr, last == 0, K, BN)
                began = tile
                q = _query(q_ptr, gl.where(last, 0, row), head, H, K, D, A)
                best = gl.full([16], float("-inf"), gl.float32, layout=gl.SliceLayout(1, MMA))
                total = gl.zeros([16], gl.float32, layout=gl.SliceLayout(1, MMA))
                mixed = gl.zeros([16, D], gl.float32, layout=MMA)
            else:
                tile += 1


def decode(
    q_RHD: Tensor, k_cache: Tensor, v_cache: Tensor, table_NB: Tensor, slot_R: Tensor, position_R: Tensor, words: Tensor, arrived: Tensor,
    parts: Tensor, weights: Tensor, scale: float, out_RHD: Tensor, tile: int, stages: int, merging: bool, early: bool,
) -> None:  # fmt: skip
    """What the kernel of this name in kernels.decode_attention does, for what kernels.hopper `fits`; `merging`: also what its `_merge` does.

    With `early`, the kernel may read the columns, the words, the table and all but the newest key of each row while the kernel before it still runs.
    """
    _, heads, size = q_RHD.shape
    _, kv_heads, block_size, _ = k_cache.shape
    launch(
        _hopper_decode, (len(words),), ALWAYS,
        q_RHD, cells_of(k_cache), cells_of(v_cache), out_RHD, parts, weights, table_NB, slot_R, position_R, words, arrived, table_NB.stride(0), scale,
        k_cache.numel() // size,
        H=heads, K=kv_heads, D=size, P=block_size, BN=tile, STAGES=stages, WORDS=words.shape[1], MERGING=merging, EARLY=early, num_warps=1,
    )  # fmt: skip
