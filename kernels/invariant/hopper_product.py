"""Matrix products of any number of rows on Hopper GPUs, in Gluon: every element is summed along the depth in one accumulator, in order.

A row's result does not depend on the tiles: the tensor cores add 16 products at a time to the accumulator, in an instruction of 64 rows of which
each is computed alone, and the depth is never cut. Tiles of both matrices come through a ring in shared memory that the copy engine fills; those
of the weight are asked for before the kernel waits for the one that makes its input. Twin: `kernels.reference.gemv` without its norm.
"""

# mypy: disallow-untyped-decorators=False

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.language import debug_barrier

from kernels.hopper import matrix_of
from kernels.launch import ALWAYS, LOG2E, NEVER, cdiv, launch, on_hopper, power_of_two
from kernels.ring import _halves, wait_and_trigger

LEAST, LOW, TALL = 8, 64, 128
MOST_LATE_ROWS = 256
GROUP = 8
"""Row tiles that go over the columns together, so that programs at work at one time share what they read."""
ONE_WARP_GROUP, TWO_WARP_GROUPS = 4, 8


class Settings(NamedTuple):
    """Tuning, none of which changes a bit of the result: rows, columns and depth of a tile, and how many steps of the depth are on their way."""

    rows: int
    columns: int
    depth: int
    stages: int


@gluon.jit
def _place(tiles_m: gl.tensor, tiles_n: gl.tensor, GROUP: gl.constexpr) -> Any:
    """Row and column of this program's tile."""
    program = gl.program_id(0)
    first = program // (GROUP * tiles_n) * GROUP
    inside = program % (GROUP * tiles_n)
    height = gl.minimum(tiles_m - first, GROUP)
    return first + inside % height, inside // height


@gluon.jit
def _ask_weight(
    w_desc: tma.tensor_descriptor, bar: gl.shared_memory_descriptor, tile: gl.shared_memory_descriptor, column: gl.tensor, N: gl.tensor,
    k: gl.tensor, needed: gl.tensor, GATED: gl.constexpr,
) -> None:  # fmt: skip
    BN: gl.constexpr = w_desc.block_type.shape[0]
    if GATED:
        tma.async_copy_global_to_shared(w_desc, [column, k], bar, tile.slice(0, BN), pred=needed)
        tma.async_copy_global_to_shared(w_desc, [N + column, k], bar, tile.slice(BN, BN), pred=needed)
    else:
        tma.async_copy_global_to_shared(w_desc, [column, k], bar, tile, pred=needed)


@gluon.jit
def _ask_input(
    x_desc: tma.tensor_descriptor, bar: gl.shared_memory_descriptor, tile: gl.shared_memory_descriptor, row: gl.tensor, k: gl.tensor,
    needed: gl.tensor,
) -> None:  # fmt: skip
    """With few rows only the first ones of the tile: what lies in the others changes no result that is kept."""
    HIGH: gl.constexpr = x_desc.block_type.shape[0]
    if tile.shape[0] == HIGH:
        tma.async_copy_global_to_shared(x_desc, [row, k], bar, tile, pred=needed)
    else:
        tma.async_copy_global_to_shared(x_desc, [row, k], bar, tile.slice(0, HIGH), pred=needed)


@gluon.jit(do_not_specialize=["rows", "tiles_m"])
def _in_order(
    x_desc: tma.tensor_descriptor, w_desc: tma.tensor_descriptor, bias_ptr: gl.tensor, out_ptr: gl.tensor, rows: gl.tensor, N: gl.tensor,
    K: gl.tensor, tiles_m: gl.tensor, tiles_n: gl.tensor,
    BM: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr, GATED: gl.constexpr, ADD: gl.constexpr, BIAS: gl.constexpr, PDL: gl.constexpr,
    num_warps: gl.constexpr,
) -> None:  # fmt: skip
    """out [rows, N] of x [rows, K] and the weight [N, K], or [2N, K] when GATED."""
    BK: gl.constexpr = x_desc.block_type.shape[1]
    BN: gl.constexpr = w_desc.block_type.shape[0]
    WIDE: gl.constexpr = BN * 2 if GATED else BN
    BYTES: gl.constexpr = x_desc.block_type.nbytes + w_desc.block_type.nbytes * (2 if GATED else 1)
    x_tiles = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BM, BK], x_desc.layout)
    w_tiles = gl.allocate_shared_memory(w_desc.dtype, [STAGES, WIDE, BK], w_desc.layout)
    bars = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(bars.index(i), count=1)
    tile_m, tile_n = _place(tiles_m, tiles_n, GROUP)
    first_row, first_column = tile_m * BM, tile_n * BN
    count = (K + BK - 1) // BK
    for i in gl.static_range(STAGES):
        mbarrier.expect(bars.index(i), BYTES, pred=i < count)
        _ask_weight(w_desc, bars.index(i), w_tiles.index(i), first_column, N, i * BK, i < count, GATED)
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, WIDE, 16])
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, BN, 16])
    row = first_row + gl.arange(0, BM, gl.SliceLayout(1, layout))
    column = first_column + gl.arange(0, BN, gl.SliceLayout(0, layout))
    inside = (row < rows)[:, None] & (column < N)[None, :]
    cell = row.to(gl.int64)[:, None] * N + column[None, :]
    EARLY: gl.constexpr = 1024 * num_warps >= BM * BN  # small enough to be held while the products are made
    if BIAS:
        bias = gl.load(bias_ptr + column, mask=column < N, other=0.0)
    if PDL:
        wait_and_trigger()
    for i in gl.static_range(STAGES):
        _ask_input(x_desc, bars.index(i), x_tiles.index(i), first_row, i * BK, i < count)
    if ADD and EARLY:
        residual = gl.load(out_ptr + cell, mask=inside, other=0.0)
    acc = gl.zeros([BM, WIDE], gl.float32, acc_layout)
    for i in range(count):
        stage = i % STAGES
        mbarrier.wait(bars.index(stage), (i // STAGES) & 1)
        acc = warpgroup_mma(x_tiles.index(stage), w_tiles.index(stage).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))
        debug_barrier()  # every warp is done with the tiles of the step before: their place can be filled again
        following = i - 1 + STAGES
        needed = (i > 0) & (following < count)
        bar = bars.index(following % STAGES)
        mbarrier.expect(bar, BYTES, pred=needed)
        _ask_weight(w_desc, bar, w_tiles.index(following % STAGES), first_column, N, following * BK, needed, GATED)
        _ask_input(x_desc, bar, x_tiles.index(following % STAGES), first_row, following * BK, needed)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    if GATED:
        y, up = _halves(acc, num_warps)
        y = y / (1.0 + gl.exp2(-y * LOG2E)) * up
    else:
        y = acc + 0.0  # a sum, or ptxas takes the conversion for a use of what is not yet there, and makes one product wait for the other
    if BIAS:
        y += bias.to(gl.float32)[None, :]
    if ADD:
        if EARLY:
            y += residual.to(gl.float32)
        else:
            y += gl.load(out_ptr + cell, mask=inside, other=0.0).to(gl.float32)
    gl.store(out_ptr + cell, y.to(out_ptr.dtype.element_ty), mask=inside)


def fits(x_TM: Tensor, weight: Tensor) -> bool:
    """Whether this kernel can compute the product: on Hopper, two bytes an element, rows of a multiple of 16 bytes."""
    return (
        x_TM.dtype == weight.dtype and x_TM.dtype in (torch.bfloat16, torch.float16) and x_TM.shape[1] % 8 == 0
        and x_TM.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0 and on_hopper(x_TM.device)
    )  # fmt: skip


WAVE = 132
"""Programs that an H200 runs at one time."""
GATED = Settings(64, 64, 128, 4), Settings(128, 64, 64, 4), Settings(128, 128, 64, 4)
PLAIN = Settings(64, 32, 128, 6), Settings(64, 64, 128, 4), Settings(128, 64, 128, 4), Settings(128, 128, 64, 4)
WIDE, SHORT = 16_384, 1024


def _for_few(columns: int, gated: bool) -> Settings:
    """For as many rows as lie in one tile."""
    if gated:
        return Settings(LOW, 64 if columns > 4096 else 32, 128, 4)
    if columns <= 2048:
        return Settings(LOW, 16, 256, 4)
    if columns <= 32 * WAVE:
        return Settings(LOW, 32, 128, 6)
    return Settings(LOW, 32, 128, 4) if columns <= WIDE else Settings(LOW, 64, 64, 6)


def settings_for(rows: int, columns: int, depth: int, gated: bool) -> Settings:
    """Settings for the product of `rows` rows with [columns, depth], twice the columns if gated: the smallest tiles of one wave (bench/GPU.md)."""
    if rows <= LOW:
        return _for_few(columns, gated)
    for settings in GATED if gated else PLAIN:
        if cdiv(rows, settings.rows) * cdiv(columns, settings.columns) <= WAVE:
            return settings
    if gated or (rows <= TALL and columns > WIDE):
        return Settings(TALL, 128, 64, 4)
    if columns > WIDE:
        return Settings(2 * TALL, 128, 64, 4)
    return Settings(TALL, 128, 64, 3) if depth <= SHORT else Settings(TALL, 256, 64, 4)


def product(
    x_TM: Tensor, weight: Tensor, bias: Tensor | None, out_TN: Tensor, gated: bool = False, add: bool = False, settings: Settings | None = None
) -> None:
    """Into (or, with `add`, onto) `out_TN` the product of x with `weight` [N, M]; with [2N, M], gate first, if gated, then without a bias.

    All contiguous, out of any float type; sums are in float32.
    """
    (rows, depth), columns = x_TM.shape, out_TN.shape[1]
    chosen = settings or settings_for(rows, columns, depth, gated)
    tiles_m, tiles_n = cdiv(rows, chosen.rows), cdiv(columns, chosen.columns)
    high = min(chosen.rows, max(LEAST, power_of_two(rows)))
    launch(
        _in_order, (tiles_m * tiles_n,), ALWAYS if rows <= MOST_LATE_ROWS else NEVER,
        matrix_of(x_TM, high, chosen.depth), matrix_of(weight, chosen.columns, chosen.depth), bias, out_TN, rows, columns, depth, tiles_m, tiles_n,
        BM=chosen.rows, STAGES=min(chosen.stages, cdiv(depth, chosen.depth)), GROUP=GROUP, GATED=gated, ADD=add, BIAS=bias is not None,
        num_warps=ONE_WARP_GROUP if chosen.rows == LOW else TWO_WARP_GROUPS,
    )  # fmt: skip
