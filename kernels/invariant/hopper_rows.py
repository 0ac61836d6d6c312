"""Paged attention for rows of one token on Hopper GPUs, in Gluon, bit for bit as kernels.hopper_prefill computes them with tiles of as many keys.

A program takes item after item (a row and a key/value head), the longest first. One warp brings keys and values into shared memory, block by block,
through the tensor memory accelerator, and runs ahead into the next item. A group of four warps multiplies: the query heads of the item are the first
of 64 rows, the least that the instruction takes. That is more arithmetic than is needed and still less time than reading the keys takes.
"""

# mypy: disallow-untyped-decorators=False

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from kernels.hopper import cells_of
from kernels.hopper_decode import barrier
from kernels.hopper_softmax import fold
from kernels.launch import ALWAYS, LOG2E, launch
from kernels.ring import wait_and_trigger

PROCESSORS, TOGETHER = 132, 2
"""Multiprocessors of an H200, and programs of each at one time."""
FEW_REGISTERS = gl.constexpr(40)
REGISTERS = 128
"""Of a thread when a program begins: half of a multiprocessor's for 256 threads. The warp that brings gives most of its own away."""


@gluon.jit
def _item(number: gl.tensor, words_ptr: gl.tensor, programs: gl.tensor, items: gl.tensor, WORDS: gl.constexpr) -> gl.tuple:
    """Item of round `number` of this program: whether there is one, its row, slot, keys and head. Every other round runs backwards."""
    program = gl.program_id(0)
    index = number * programs + gl.where(number % 2 == 0, program, programs - 1 - program)
    there = index < items
    at = words_ptr + index * WORDS
    # Not from the first-level cache, which may hold what earlier kernels read.
    row = gl.load(at, mask=there, other=0, cache_modifier=".cg")
    slot = gl.load(at + 1, mask=there, other=0, cache_modifier=".cg")
    length = gl.load(at + 2, mask=there, other=0, cache_modifier=".cg")
    return there, row, slot, length, gl.load(at + 3, mask=there, other=0, cache_modifier=".cg")


@gluon.jit
def _bring(
    k_desc: gl.tensor, v_desc: gl.tensor, k_smem: gl.tensor, v_smem: gl.tensor, ready: gl.tensor, empty: gl.tensor, words_ptr: gl.tensor,
    table_ptr: gl.tensor, numbers: gl.tuple,
    K: gl.constexpr, D: gl.constexpr, P: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, WORDS: gl.constexpr, EARLY: gl.constexpr,
    PDL: gl.constexpr,
) -> None:  # fmt: skip
    items, table_stride, programs, cells = numbers
    C: gl.constexpr = D // 64
    N: gl.constexpr = BN // 16
    if PDL and not EARLY:
        wait_and_trigger()
    done = 0
    for number in range(gl.cdiv(items, programs)):
        there, _row, slot, length, head = _item(number, words_ptr, programs, items, WORDS)
        if there:
            blocks_ptr = table_ptr + slot.to(gl.int64) * table_stride
            for step in range(gl.cdiv(length, BN)):
                stage = done % STAGES
                found: gl.tuple = ()
                for n in gl.static_range(N):
                    position = step * BN + n * 16
                    block = gl.load(blocks_ptr + position // P, mask=position < length, other=0, cache_modifier=".cg")
                    # Past the end of the cache the copy writes zeros.
                    found += (gl.where(position < length, (block * K + head) * P + position % P, cells),)
                if PDL and EARLY:  # noqa: SIM102  # known when it is compiled
                    if (step + 1) * BN >= length:  # the newest key
                        wait_and_trigger()
                mbarrier.wait(empty.index(stage), done // STAGES & 1 ^ 1)
                mbarrier.expect(ready.index(stage), 2 * BN * D * 2)
                for n in gl.static_range(N):
                    for c in gl.static_range(C):
                        tma.async_copy_global_to_shared(k_desc, [found[n], c * 64], ready.index(stage), k_smem.index((stage * C + c) * N + n))
                        tma.async_copy_global_to_shared(v_desc, [found[n], c * 64], ready.index(stage), v_smem.index((stage * C + c) * N + n))
                done += 1


@gluon.jit
def _work(
    q_ptr: gl.tensor, k_tiles: gl.tensor, v_tiles: gl.tensor, v_smem: gl.tensor, ready: gl.tensor, empty: gl.tensor, words_ptr: gl.tensor,
    numbers: gl.tuple, out_ptr: gl.tensor, qk_scale: gl.tensor,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, WORDS: gl.constexpr, PDL: gl.constexpr,
) -> None:  # fmt: skip
    G: gl.constexpr = H // K
    C: gl.constexpr = D // 64
    N: gl.constexpr = BN // 16
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    TINY: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    dtype: gl.constexpr = k_tiles.dtype
    items, _table_stride, programs, _cells = numbers
    if PDL:
        wait_and_trigger()
    done = 0
    for number in range(gl.cdiv(items, programs)):
        there, row, _slot, length, head = _item(number, words_ptr, programs, items, WORDS)
        if there:
            first = (row.to(gl.int64) * H + head * G) * D
            member = gl.arange(0, 64, layout=gl.SliceLayout(1, Q_LAYOUT))
            column = gl.arange(0, D, layout=gl.SliceLayout(0, Q_LAYOUT))
            q = gl.load(q_ptr + first + member[:, None] * D + column[None, :], mask=(member < G)[:, None] & (column < D)[None, :], other=0.0)
            best = gl.full([64], float("-inf"), gl.float32, layout=gl.SliceLayout(1, S_LAYOUT))
            total = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, S_LAYOUT))
            zero = gl.zeros([64, BN], gl.float32, layout=S_LAYOUT)
            o = gl.zeros([64, D], gl.float32, layout=O_LAYOUT)
            for step in range(gl.cdiv(length, BN)):
                stage = done % STAGES
                mbarrier.wait(ready.index(stage), done // STAGES & 1)
                s = warpgroup_mma(q, k_tiles.index(stage).permute((1, 0)), zero, use_acc=False, is_async=True)
                s = warpgroup_mma_wait(0, deps=(s,))
                if (step + 1) * BN > length:
                    key = step * BN + gl.arange(0, BN, layout=gl.SliceLayout(0, S_LAYOUT))
                    s = gl.where((key < length)[None, :], s, float("-inf"))
                    if length % 16 != 0:
                        # What lies after the last key in its block may be NaN, which a weight of 0 does not hide.
                        for c in gl.static_range(C):
                            block = v_smem.index((stage * C + c) * N + length % BN // 16)
                            line = gl.arange(0, 16, layout=gl.SliceLayout(1, TINY))
                            v = block.load(TINY)
                            block.store(gl.where((line < length % 16)[:, None], v, gl.zeros([16, 64], dtype, layout=TINY)))
                        fence_async_shared()
                        barrier()
                weight, best, total, shrink = fold(s, best, total, qk_scale)
                o = o * gl.convert_layout(shrink, gl.SliceLayout(1, O_LAYOUT))[:, None]
                o = warpgroup_mma(gl.convert_layout(weight.to(dtype), P_LAYOUT), v_tiles.index(stage), o, is_async=True)
                o = warpgroup_mma_wait(0, deps=(o,))
                mbarrier.arrive(empty.index(stage), count=1)
                done += 1
            head_of = gl.arange(0, 64, layout=gl.SliceLayout(1, O_LAYOUT))
            place = gl.arange(0, D, layout=gl.SliceLayout(0, O_LAYOUT))
            o = o / gl.convert_layout(total, gl.SliceLayout(1, O_LAYOUT))[:, None]
            gl.store(out_ptr + first + head_of[:, None] * D + place[None, :], o.to(dtype), mask=(head_of < G)[:, None] & (place < D)[None, :])


@gluon.jit(do_not_specialize=["items", "table_stride", "programs", "cells"])
def _hopper_rows(
    q_ptr: gl.tensor, k_desc: gl.tensor, v_desc: gl.tensor, out_ptr: gl.tensor, words_ptr: gl.tensor, table_ptr: gl.tensor, items: gl.tensor,
    table_stride: gl.tensor, programs: gl.tensor, cells: gl.tensor, scale: gl.tensor,
    H: gl.constexpr, K: gl.constexpr, D: gl.constexpr, P: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, WORDS: gl.constexpr,
    EARLY: gl.constexpr, PDL: gl.constexpr,
) -> None:  # fmt: skip
    C: gl.constexpr = D // 64
    N: gl.constexpr = BN // 16
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(128, 16, rank=2)
    dtype: gl.constexpr = k_desc.dtype
    k_smem = gl.allocate_shared_memory(dtype, [STAGES * C * N, 16, 64], LAYOUT)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES * C * N, 16, 64], LAYOUT)
    k_tiles = k_smem._reinterpret(dtype, [STAGES, BN, D], LAYOUT)
    v_tiles = v_smem._reinterpret(dtype, [STAGES, BN, D], LAYOUT)
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(ready.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    numbers = (items, table_stride, programs, cells)
    gl.warp_specialize([
        (_work, (q_ptr, k_tiles, v_tiles, v_smem, ready, empty, words_ptr, numbers, out_ptr, scale * LOG2E, H, K, D, BN, STAGES, WORDS, PDL)),
        (_bring, (k_desc, v_desc, k_smem, v_smem, ready, empty, words_ptr, table_ptr, numbers, K, D, P, BN, STAGES, WORDS, EARLY, PDL)),
    ], [1], [FEW_REGISTERS])  # fmt: skip


def attend_rows(
    q_RHD: Tensor, k_cache: Tensor, v_cache: Tensor, table_NB: Tensor, words: Tensor, scale: float, out_RHD: Tensor, tile: int, stages: int,
    early: bool,
) -> None:  # fmt: skip
    """As kernels.decode_attention.decode, for what kernels.hopper `fits`; `words`: shares by items, of tiles of any size.

    With `early`, the kernel may read the words, the table and all but the newest key of each row while the kernel before it still runs.
    """
    _, heads, size = q_RHD.shape
    _, kv_heads, block_size, _ = k_cache.shape
    programs = min(PROCESSORS * TOGETHER, len(words))
    launch(
        _hopper_rows, (programs,), ALWAYS, q_RHD, cells_of(k_cache), cells_of(v_cache), out_RHD, words, table_NB, len(words), table_NB.stride(0),
        programs, k_cache.numel() // size, scale,
        H=heads, K=kv_heads, D=size, P=block_size, BN=tile, STAGES=stages, WORDS=words.shape[1], EARLY=early, num_warps=4, maxnreg=REGISTERS,
    )  # fmt: skip
