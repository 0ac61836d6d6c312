"""Matrix products of 25 to 256 rows on Hopper: tiles of the weight and of the input go through rings in shared memory that the copy engine fills.

Written in Gluon, Triton's lower level, for one thing that Triton's own pipelines cannot do: the first tiles of the weight are asked for before the
kernel waits for the one that makes its input. Products with few columns are also cut along the depth: when all parts of a tile have arrived, each
part's program adds up some of the rows, in order: the result does not depend on who is last. Where this cannot run (see `fits`), `kernels.skinny` is
the same.
"""

# mypy: disallow-untyped-decorators=False

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language import debug_barrier

from kernels.launch import ALWAYS, LOG2E, cdiv, launch, on_hopper, power_of_two

MOST_ROWS = 256
SCRATCH_PARTS = 1 << 24
SCRATCH_COUNTERS = gl.constexpr(4096)
MOST_PARTS, PROCESSORS = 16, 132  # multiprocessors of an H200
LOW, TALL = 64, 128
"""Rows of a tile."""
LEAST_ROWS, FEW, WIDEST = 25, 32, 16_384


class Settings(NamedTuple):
    """Tuning: rows, columns and depth of a tile, tiles of the weight and of the input that are on their way at once, and parts of the depth: a power
    of two, halved where the device has too few multiprocessors for all programs at once."""

    rows: int
    columns: int
    depth: int
    weights: int
    inputs: int
    parts: int = 1


@gluon.jit
def _ask_weight(
    desc: tma.tensor_descriptor, bars: gl.shared_memory_descriptor, tiles: gl.shared_memory_descriptor, number: gl.tensor, column: gl.tensor,
    N: gl.tensor, k: gl.tensor, needed: gl.tensor, GATED: gl.constexpr,
) -> None:  # fmt: skip
    """Tile `number` of the weight, over the tile N rows below it if GATED, into its place of the ring."""
    slot = number % bars.shape[0]
    bar = bars.index(slot)
    BN: gl.constexpr = desc.block_type.shape[0]
    mbarrier.expect(bar, desc.block_type.nbytes * (2 if GATED else 1), pred=needed)
    if GATED:
        tma.async_copy_global_to_shared(desc, [column, k], bar, tiles.index(slot).slice(0, BN), pred=needed)
        tma.async_copy_global_to_shared(desc, [N + column, k], bar, tiles.index(slot).slice(BN, BN), pred=needed)
    else:
        tma.async_copy_global_to_shared(desc, [column, k], bar, tiles.index(slot), pred=needed)


@gluon.jit
def _start(
    x_desc: tma.tensor_descriptor, w_desc: tma.tensor_descriptor, N: gl.tensor, K: gl.tensor, steps: gl.tensor,
    WEIGHTS: gl.constexpr, INPUTS: gl.constexpr, GATED: gl.constexpr,
) -> Any:  # fmt: skip
    """The rings of this program, with the first tiles of the weight on their way: tiles and barriers of the input, and of the weight."""
    BM: gl.constexpr = x_desc.block_type.shape[0]
    BN: gl.constexpr = w_desc.block_type.shape[0]
    BK: gl.constexpr = w_desc.block_type.shape[1]
    x_tiles = gl.allocate_shared_memory(x_desc.dtype, [INPUTS, BM, BK], x_desc.layout)
    w_tiles = gl.allocate_shared_memory(w_desc.dtype, [WEIGHTS, BN * 2 if GATED else BN, BK], w_desc.layout)
    x_bars = gl.allocate_shared_memory(gl.int64, [INPUTS, 1], mbarrier.MBarrierLayout())
    w_bars = gl.allocate_shared_memory(gl.int64, [WEIGHTS, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(INPUTS):
        mbarrier.init(x_bars.index(slot), count=1)
    for slot in gl.static_range(WEIGHTS):
        mbarrier.init(w_bars.index(slot), count=1)
    first = gl.program_id(2) * steps
    count = gl.minimum(steps, (K + BK - 1) // BK - first)
    for i in gl.static_range(WEIGHTS):
        _ask_weight(w_desc, w_bars, w_tiles, i, gl.program_id(0) * BN, N, (first + i) * BK, i < count, GATED)
    for i in gl.static_range(INPUTS):
        mbarrier.expect(x_bars.index(i), x_desc.block_type.nbytes, pred=i < count)
    bar = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())
    mbarrier.init(bar.index(0), count=1)
    mbarrier.expect(bar.index(0), x_desc.block_type.nbytes)  # thrown away: it brings the descriptor of the input to the copy engine
    tma.async_copy_global_to_shared(x_desc, [gl.program_id(1) * BM, 0], bar.index(0), x_tiles.index(0))
    return x_tiles, x_bars, w_tiles, w_bars, bar


@gluon.jit
def wait_and_trigger() -> None:
    """Wait for the results of all kernels before this one, then let the next one start."""
    gl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)
    gl.inline_asm_elementwise("griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def _wait_and_ask(
    x_desc: tma.tensor_descriptor, x_tiles: gl.shared_memory_descriptor, x_bars: gl.shared_memory_descriptor, K: gl.tensor, steps: gl.tensor,
    bar: gl.shared_memory_descriptor, PDL: gl.constexpr,
) -> None:  # fmt: skip
    """Wait for the kernel before, let the next one start, and ask for the first tiles of the input."""
    BM: gl.constexpr = x_desc.block_type.shape[0]
    BK: gl.constexpr = x_desc.block_type.shape[1]
    if PDL:
        wait_and_trigger()
    first = gl.program_id(2) * steps
    count = gl.minimum(steps, (K + BK - 1) // BK - first)
    INPUTS: gl.constexpr = x_bars.shape[0]
    mbarrier.wait(bar.index(0), 0)
    for i in gl.static_range(INPUTS):
        tma.async_copy_global_to_shared(x_desc, [gl.program_id(1) * BM, (first + i) * BK], x_bars.index(i), x_tiles.index(i), pred=i < count)


@gluon.jit
def _add_share(acc: gl.tensor, parts_ptr: gl.tensor, counter_ptr: gl.tensor, PARTS: gl.constexpr, mma: gl.constexpr, flat: gl.constexpr) -> Any:
    """This program's share of the rows of the tile, added up over all parts. The programs of a tile must all be on the device at once.

    Counters never start again: each launch adds PARTS, so that those of a number of parts are always a multiple of it between launches.
    """
    BM: gl.constexpr = acc.shape[0]
    WIDE: gl.constexpr = acc.shape[1]
    SIZE: gl.constexpr = BM * WIDE
    tile = gl.program_id(1) * gl.num_programs(0) + gl.program_id(0)
    place = parts_ptr + tile * (PARTS * SIZE)
    line = gl.arange(0, BM, gl.SliceLayout(1, mma))[:, None] * WIDE
    gl.store(place + gl.program_id(2) * SIZE + line + gl.arange(0, WIDE, gl.SliceLayout(0, mma))[None, :], acc)
    debug_barrier()
    counter = counter_ptr + PARTS * SCRATCH_COUNTERS + tile
    seen = gl.atomic_add(counter, 1, sem="acq_rel") + 1
    target = ((seen - 1) & (0 - PARTS)) + PARTS
    while seen - target < 0:
        seen = gl.atomic_add(counter, 0, sem="acq_rel")
    own = gl.program_id(2) * (BM // PARTS) + gl.arange(0, BM // PARTS, gl.SliceLayout(1, flat))
    cell = own[:, None] * WIDE + gl.arange(0, WIDE, gl.SliceLayout(0, flat))[None, :]
    y = gl.zeros([BM // PARTS, WIDE], gl.float32, flat)
    for part in gl.static_range(PARTS):
        y += gl.load(place + cell + part * SIZE, cache_modifier=".cg")
    return y


@gluon.jit
def _sums(
    x_desc: tma.tensor_descriptor, w_desc: tma.tensor_descriptor, x_tiles: gl.shared_memory_descriptor, x_bars: gl.shared_memory_descriptor,
    w_tiles: gl.shared_memory_descriptor, w_bars: gl.shared_memory_descriptor, parts_ptr: gl.tensor, counter_ptr: gl.tensor,
    N: gl.tensor, K: gl.tensor, steps: gl.tensor, PARTS: gl.constexpr, REFILL: gl.constexpr, GATED: gl.constexpr,
    flat: gl.constexpr, num_warps: gl.constexpr,
) -> Any:  # fmt: skip
    """This program's tile of the product, or its share of the rows of one of several PARTS. REFILL: the rings have fewer places than there are
    steps."""
    BM: gl.constexpr = x_desc.block_type.shape[0]
    BN: gl.constexpr = w_desc.block_type.shape[0]
    BK: gl.constexpr = w_desc.block_type.shape[1]
    INPUTS: gl.constexpr = x_bars.shape[0]
    WEIGHTS: gl.constexpr = w_bars.shape[0]
    WIDE: gl.constexpr = w_tiles.shape[1]
    layout: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, WIDE, 16])
    first = gl.program_id(2) * steps
    count = gl.minimum(steps, (K + BK - 1) // BK - first)
    acc = gl.zeros([BM, WIDE], gl.float32, layout)
    for i in range(count):
        mbarrier.wait(w_bars.index(i % WEIGHTS), (i // WEIGHTS) & 1)
        mbarrier.wait(x_bars.index(i % INPUTS), (i // INPUTS) & 1)
        acc = warpgroup_mma(x_tiles.index(i % INPUTS), w_tiles.index(i % WEIGHTS).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))
        if REFILL:
            debug_barrier()  # every warp is done with the tiles of the step before: their places can be filled again
            w_next, x_next = i - 1 + WEIGHTS, i - 1 + INPUTS
            _ask_weight(w_desc, w_bars, w_tiles, w_next, gl.program_id(0) * BN, N, (first + w_next) * BK, (i > 0) & (w_next < count), GATED)
            bar, needed = x_bars.index(x_next % INPUTS), (i > 0) & (x_next < count)
            mbarrier.expect(bar, x_desc.block_type.nbytes, pred=needed)
            k = (first + x_next) * BK
            tma.async_copy_global_to_shared(x_desc, [gl.program_id(1) * BM, k], bar, x_tiles.index(x_next % INPUTS), pred=needed)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    if PARTS > 1:
        acc = _add_share(acc, parts_ptr, counter_ptr, PARTS, layout, flat)
    return acc


@gluon.jit
def _halves(y: gl.tensor, num_warps: gl.constexpr, layout: gl.constexpr = None) -> Any:
    """The left and the right half of the columns, as the products of `num_warps` warps lie in registers, or in `layout`."""
    left, right = gl.split(gl.permute(gl.reshape(y, [y.shape[0], 2, y.shape[1] // 2]), (0, 2, 1)))
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, y.shape[1] // 2, 16])
    there: gl.constexpr = mma if layout is None else layout
    return gl.convert_layout(left, there), gl.convert_layout(right, there)


@gluon.jit
def _ask_squares(squares_ptr: gl.tensor, row: gl.tensor, rows: gl.tensor, groups: gl.tensor, SPAN: gl.constexpr, layout: gl.constexpr) -> Any:
    """Sums of squares of every row, [BM, SPAN], from `squares` [rows, groups]."""
    span = gl.arange(0, SPAN, gl.SliceLayout(0, layout))
    return gl.load(squares_ptr + row[:, None] * groups + span[None, :], mask=(row < rows)[:, None] & (span < groups)[None, :], other=0.0)


@gluon.jit(do_not_specialize=["rows", "steps", "groups"])
def _ring(
    x_desc: tma.tensor_descriptor, w_desc: tma.tensor_descriptor, squares_ptr: gl.tensor, bias_ptr: gl.tensor, out_ptr: gl.tensor,
    gamma_ptr: gl.tensor, scaled_ptr: gl.tensor, sums_ptr: gl.tensor, parts_ptr: gl.tensor, counter_ptr: gl.tensor,
    rows: gl.tensor, N: gl.tensor, K: gl.tensor, steps: gl.tensor, groups: gl.tensor, eps: gl.tensor,
    WEIGHTS: gl.constexpr, INPUTS: gl.constexpr, REFILL: gl.constexpr, PARTS: gl.constexpr, SPAN: gl.constexpr,
    GATED: gl.constexpr, ADD: gl.constexpr, BIAS: gl.constexpr, SCALED: gl.constexpr, PDL: gl.constexpr, num_warps: gl.constexpr,
) -> None:  # fmt: skip
    """out [rows, N] of x [rows, K] and the weight [N, K], or [2N, K] when GATED; each part goes over `steps` tiles of K.

    SPAN > 0: rows are multiplied by their RMSNorm's factor, from `squares` [rows, groups]. SCALED: also `scaled` = out * gamma [rows, N], and the
    sums of squares of out in every tile of columns.
    """
    BM: gl.constexpr = x_desc.block_type.shape[0]
    BN: gl.constexpr = w_desc.block_type.shape[0]
    x_tiles, x_bars, w_tiles, w_bars, bar = _start(x_desc, w_desc, N, K, steps, WEIGHTS, INPUTS, GATED)
    flat: gl.constexpr = gl.BlockedLayout([1, 4], [128 // BN, BN // 4], [num_warps, 1], [1, 0])
    mma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[num_warps, 1], instr_shape=[16, BN, 16])
    layout: gl.constexpr = flat if PARTS > 1 else mma
    row = gl.program_id(1) * BM + gl.program_id(2) * (BM // PARTS) + gl.arange(0, BM // PARTS, gl.SliceLayout(1, layout))
    column = gl.program_id(0) * BN + gl.arange(0, BN, gl.SliceLayout(0, layout))
    inside = (row < rows)[:, None] & (column < N)[None, :]
    cell = row.to(gl.int64)[:, None] * N + column[None, :]
    if SCALED:  # what is used after the products is asked for before them
        gamma = gl.load(gamma_ptr + column, mask=column < N, other=0.0)
    if BIAS:
        bias = gl.load(bias_ptr + column, mask=column < N, other=0.0)
    _wait_and_ask(x_desc, x_tiles, x_bars, K, steps, bar, PDL)
    if ADD:
        residual = gl.load(out_ptr + cell, mask=inside, other=0.0)
    if SPAN:
        squares = _ask_squares(squares_ptr, row, rows, groups, SPAN, layout)
    acc = _sums(x_desc, w_desc, x_tiles, x_bars, w_tiles, w_bars, parts_ptr, counter_ptr, N, K, steps, PARTS, REFILL, GATED, flat, num_warps)
    if GATED:
        y, up = _halves(acc, num_warps, layout)
    else:
        y = acc
    if SPAN:
        factor = gl.rsqrt(gl.sum(squares, 1) / K + eps)
        y *= factor[:, None]
        if GATED:
            up *= factor[:, None]
    if GATED:
        y = y / (1.0 + gl.exp2(-y * LOG2E)) * up
    if BIAS:
        y += bias.to(gl.float32)[None, :]
    if ADD:
        y += residual.to(gl.float32)
    rounded = y.to(out_ptr.dtype.element_ty)
    gl.store(out_ptr + cell, rounded, mask=inside)
    if SCALED:
        y = gl.where(inside, rounded.to(gl.float32), 0.0)
        gl.store(scaled_ptr + cell, (y * gamma.to(gl.float32)[None, :]).to(scaled_ptr.dtype.element_ty), mask=inside)
        gl.store(sums_ptr + row * gl.num_programs(0) + gl.program_id(0), gl.sum(y * y, 1), mask=row < rows)


def fits(x_TM: Tensor, weight: Tensor) -> bool:
    """Whether this kernel can compute the product: on Hopper, bfloat16, at most MOST_ROWS rows, rows of a multiple of 16 bytes."""
    return (
        x_TM.dtype == weight.dtype == torch.bfloat16 and len(x_TM) <= MOST_ROWS and x_TM.shape[1] % 8 == 0
        and x_TM.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0 and on_hopper(x_TM.device)
    )  # fmt: skip


@functools.cache
def _scratch(device: torch.device) -> tuple[Tensor, Tensor]:
    """Memory for parts, and counters for each number of parts, one for each device: launches on one stream do not overlap in its use.

    The first call must not be part of a captured graph, whose memory it would be.
    """
    return torch.empty(SCRATCH_PARTS, device=device), torch.zeros((MOST_PARTS + 1) * SCRATCH_COUNTERS.value, dtype=torch.int32, device=device)


def _scratch_for(device: torch.device, grid: tuple[int, int, int], size: int) -> tuple[Tensor | None, Tensor | None]:
    """Memory for the parts, of `size` elements each, of the products of a grid (columns, rows, parts), and counters; none for one part."""
    tiles, parts = grid[0] * grid[1], grid[2]
    if parts == 1:
        return None, None
    if tiles * parts * size > SCRATCH_PARTS or tiles > SCRATCH_COUNTERS.value or parts > MOST_PARTS or parts & (parts - 1):
        raise ValueError(f"{parts} parts of {tiles} tiles of {size} do not fit the scratch memory, or are no power of two")
    return _scratch(device)


@functools.cache
def _parts(wanted: int, tiles: int, device: torch.device) -> int:
    """Parts of each of `tiles`: `wanted`, or halved until the device has a multiprocessor for every program: the parts of a tile wait for each other.

    Nothing that is on the device at the same time may wait likewise: one such kernel starts only when all programs of the one before have started.
    """
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else PROCESSORS
    while wanted > 1 and tiles * wanted > processors:
        wanted //= 2
    return wanted


def new_rows(like: Tensor, rows: int, columns: int) -> Tensor:
    """Memory for an input [rows, columns] of the type of `like`, with memory behind it up to whole tiles.

    What lies there is read but changes nothing; tiles that reach past the end of a matrix were seen to take much longer (136 rows than 256).
    """
    tall = TALL if rows > LOW else LOW
    return like.new_empty(cdiv(rows, tall) * tall, columns)[:rows]


def _describe(matrix: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """How the copy engine sees a matrix: in tiles, swizzled for the tensor cores, zero past its edges; with what lies behind it in its last tiles
    if that is memory of the same tensor."""
    layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16)
    count, size = matrix.shape
    whole = cdiv(count, rows) * rows
    if whole * size * matrix.element_size() <= matrix.untyped_storage().nbytes() - matrix.storage_offset() * matrix.element_size():
        count = whole
    return TensorDescriptor(matrix, [count, size], [size, 1], [rows, columns], layout)


def wins(rows: int, columns: int, depth: int) -> bool:
    """Whether this was measured to be faster, in whole steps, than what else there is (bench/GPU.md)."""
    small = min(columns, depth) <= 1024
    if columns > WIDEST or rows > MOST_ROWS or rows < LEAST_ROWS:
        return False
    if rows <= FEW:
        return small
    if rows <= LOW:
        return (depth <= 4096 or columns <= 4096) and (columns <= 4096 or depth != 2048)
    if rows <= TALL:
        return small or depth <= 2048
    return small and rows > 160


def settings_for(rows: int, columns: int, depth: int, gated: bool) -> Settings:
    """The settings measured best in the whole of a layer or a step (bench/GPU.md)."""
    if rows > TALL:
        if gated or columns > 2048:
            return Settings(TALL, 64, 128, 3, 3) if gated else Settings(TALL, 64, 128, 4, 4)
        return Settings(LOW, 64, 128, 6, 6, 2) if columns <= 1024 else Settings(LOW, 32, 128, 8 if depth > 2048 else 4, 4)
    if rows > LOW:
        if gated:
            return Settings(TALL, 64, 128, 3, 3) if columns > 4096 else Settings(TALL, 32, 128, 4, 4)
        return Settings(LOW, 64, 128, 4, 4, 1 if columns > 2048 else 2 if columns > 1024 else 4)
    if gated:
        return Settings(LOW, 64, 128, 4, 4) if columns > 4096 else Settings(LOW, 32, 128, 6, 6)
    if columns > 4096 and depth > 2048:
        return Settings(LOW, 64, 128, 4, 4)
    if columns > 2048:
        return Settings(LOW, 128, 128, 4, 4, 4) if depth > 2048 else Settings(LOW, 32, 128, 8, 4) if depth > 1024 else Settings(LOW, 32, 256, 4, 4)
    if columns > 1024:
        return Settings(LOW, 64, 128, 6, 6, 4) if depth > 4096 else Settings(LOW, 16, 128, 8, 8)
    return Settings(LOW, 32, 256, 3, 3, 4) if depth > 2048 else Settings(LOW, 64, 128, 4, 4, 4)


class Scaled(NamedTuple):
    """A sum x [T, M] made ready for the norm that comes next: `x` times the norm's weights, without the factors of the rows, and sums of squares
    of x in groups of its columns, float32 [T, groups]."""

    x: Tensor
    squares: Tensor


def product(
    x_TM: Tensor, weight: Tensor, bias: Tensor | None, out_TN: Tensor, gated: bool = False, add: bool = False, settings: Settings | None = None,
    squares: Tensor | None = None, eps: float = 0.0, norm_N: Tensor | None = None,
) -> Scaled | None:  # fmt: skip
    """As `kernels.skinny.product`, for inputs that it `fits`; no bias with `gated`.

    With `squares`, x is a `Scaled` one and its norm's factors come into the result. With `norm_N`, the weights of the norm that is next applied to
    the result, gives the result ready for it.
    """
    (rows, depth), columns = x_TM.shape, out_TN.shape[1]
    chosen = settings or settings_for(rows, columns, depth, gated)
    tiles = cdiv(columns, chosen.columns), cdiv(rows, chosen.rows)
    grid = *tiles, _parts(chosen.parts, tiles[0] * tiles[1], x_TM.device)
    size = chosen.rows * chosen.columns * (2 if gated else 1)
    steps = cdiv(cdiv(depth, chosen.depth), grid[2])
    scaled = None if norm_N is None else Scaled(new_rows(out_TN, rows, columns), torch.empty(rows, grid[0], device=x_TM.device))
    groups = 0 if squares is None else squares.shape[1]
    launch(
        _ring, grid, ALWAYS, _describe(x_TM, chosen.rows, chosen.depth), _describe(weight, chosen.columns, chosen.depth), squares, bias, out_TN,
        norm_N, *(scaled or (None, None)), *_scratch_for(x_TM.device, grid, size), rows, columns, depth, steps, groups, eps,
        WEIGHTS=min(steps, chosen.weights), INPUTS=min(steps, chosen.inputs), REFILL=steps > min(chosen.weights, chosen.inputs), PARTS=grid[2],
        SPAN=power_of_two(groups) if groups else 0, GATED=gated, ADD=add, BIAS=bias is not None, SCALED=scaled is not None,
        num_warps=4 if chosen.rows == LOW else 8,
    )  # fmt: skip
    return scaled
