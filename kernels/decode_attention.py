"""Paged attention for rows of one token: flash decoding (Dao et al., 2023) in Triton, with the work shared out as in Stream-K (Osama et al., 2023).

Every program has a share of the keys. With many rows, or rows of one length, a share is an item (a key/value head of a row), the longest first.
Otherwise the keys of all items, in tiles, are one line, cut into as many equal shares as there are programs: the items that lie in more than one
share are merged, in the order of the line, by a second kernel or by the last program to arrive. A small kernel writes the shares on the device,
once a step for all layers, from nothing but the rows' positions.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels import hopper, hopper_decode
from kernels.launch import ALWAYS, LOG2E, NEVER, cdiv, launch, power_of_two, trigger, wait
from kernels.prefill_attention import halves

PROCESSORS = 4 if triton.knobs.runtime.interpret else 132
"""Multiprocessors of an H200; few where one program after the other is interpreted."""
MANY = 1024
"""Items from which on each is a share."""
FEW = 256
"""Items below which merging is quicker in a kernel of its own."""
FEWEST = 64
"""Items up to which a share is long enough only with fewer programs."""
MOST_WAITING = 2400
"""Most programs that merge and may wait while others attend."""
LINE, ITEMS, EITHER = 0, 1, 2
"""How keys are shared out: along the line, by items, or whichever suits the rows' lengths."""
WORDS = 8
"""Of a share: row, slot, keys of the row, key/value head and tile it begins at, tiles; if its first item began in the share before, in how many
shares it goes on from here, otherwise 0; and the share after the one that its first item begins in."""
PIECES = 8
"""Pieces of an item that are merged at once."""
PLANNED = 16
"""Shares that a program of the planning kernel writes."""
LEAST_ROWS = 256
"""Rows that the planning kernel is compiled for at least: it costs little to have room for more than there are."""
COLUMNS = ["slot_ptr", "position_ptr"]
"""Arguments that change from step to step: no kernel is compiled for their alignment."""


class Settings(NamedTuple):
    """Tuning of the decode kernels: keys of a tile, stages of the pipeline or ring, programs for each multiprocessor along the line, warps of the
    Triton kernel, how keys are shared out, and with EITHER how long the longest row may be, in percent of the mean, for shares by items."""

    tile: int = 16
    stages: int = 3
    programs: int = 6
    warps: int = 1
    way: int = EITHER
    border: int = 200


class Shares(NamedTuple):
    """Words of every share [shares, WORDS], int32; how many pieces have arrived of the item that goes on in it; the settings they are for."""

    words: Tensor
    arrived: Tensor
    settings: Settings


@triton.jit
def _tiles(length: tl.tensor, window: tl.tensor, WINDOW: tl.constexpr, keys: tl.tensor) -> Any:
    """The first key that a row of `length` keys sees, the tile (of `keys`) that holds it, and the number of tiles from there on."""
    low = length * 0
    if WINDOW:
        low = tl.maximum(length - window, 0)
    first = low // keys
    return low, first, tl.cdiv(length, keys) - first


@triton.jit
def _pick(row: tl.tensor, wanted: tl.tensor, values: tl.tensor) -> Any:
    """values[wanted], of one value a row."""
    return tl.sum(tl.where(row[None, :] == wanted[:, None], values[None, :], 0), 1)


@triton.jit(do_not_specialize=["rows", "heads", "shares", "most", "keys", "way", "border", "window"], do_not_specialize_on_alignment=COLUMNS)
def _share_out(
    slot_ptr: tl.tensor, position_ptr: tl.tensor, share_ptr: tl.tensor, arrived_ptr: tl.tensor, rows: tl.tensor, heads: tl.tensor,
    shares: tl.tensor, most: tl.tensor, keys: tl.tensor, way: tl.tensor, border: tl.tensor, window: tl.tensor,
    ROWS: tl.constexpr, WINDOW: tl.constexpr, WORDS: tl.constexpr, PLANNED: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    trigger(PDL)
    row = tl.arange(0, ROWS)
    share = tl.program_id(0) * PLANNED + tl.arange(0, PLANNED)
    wait(PDL)
    length = tl.load(position_ptr + row, mask=row < rows, other=-1) + 1
    _low, _first, tiles = _tiles(length, window, WINDOW, keys)
    # Along the line.
    ends = tl.cumsum(tiles * heads, 0)
    total = tl.max(ends, 0)
    each = total // shares
    more = total % shares
    begin = tl.minimum(share, shares) * each + tl.minimum(share, more)
    count = tl.where(share < shares, each + (share < more).to(tl.int32), 0)
    passed = ends[None, :] <= begin[:, None]
    own = tl.minimum(tl.sum(passed.to(tl.int32), 1), rows - 1)
    offset = begin - tl.max(tl.where(passed, ends[None, :], 0), 1)
    own_tiles = _pick(row, own, tiles)
    head = offset // own_tiles
    tile = offset % own_tiles
    # The item's last tile lies in share `final`; the first `more` shares have one tile more than the others.
    wide = more * (each + 1)
    last = begin + own_tiles - tile - 1
    final = tl.where(last < wide, last // (each + 1), more + (last - wide) // tl.maximum(each, 1))
    before = each + (share <= more).to(tl.int32)
    pieces = tl.where((tile > 0) & (tile <= before) & (count > 0), final - share + 1, 0)
    origin = begin - tile
    second = 1 + tl.where(origin < wide, origin // (each + 1), more + (origin - wide) // tl.maximum(each, 1))
    # By items, the rows with most tiles first.
    real = length > 1  # those that fill up a captured step have one key
    even = tl.max(tiles, 0).to(tl.int64) * tl.sum(real.to(tl.int32), 0) * 100 <= tl.sum(tl.where(real, tiles, 0), 0).to(tl.int64) * border
    if (way == 1) | ((way == 2) & even):
        order = tl.sort(tiles * ROWS + (ROWS - 1 - row), descending=True)
        own = tl.minimum(ROWS - 1 - _pick(row, share // heads, order) % ROWS, rows - 1)
        head = share % heads
        tile = share * 0
        count = tl.where(share < rows * heads, _pick(row, own, tiles), 0)
        pieces = share * 0
    words_ptr = share_ptr + share * WORDS
    inside = share < most
    tl.store(words_ptr, own, mask=inside)
    tl.store(words_ptr + 1, tl.load(slot_ptr + own), mask=inside)
    tl.store(words_ptr + 2, tl.load(position_ptr + own) + 1, mask=inside)
    tl.store(words_ptr + 3, head, mask=inside)
    tl.store(words_ptr + 4, tile, mask=inside)
    tl.store(words_ptr + 5, count, mask=inside)
    tl.store(words_ptr + 6, pieces, mask=inside)
    tl.store(words_ptr + 7, second, mask=inside)
    tl.store(arrived_ptr + share, 0, mask=inside)


@triton.jit(do_not_specialize=["table_stride", "window"], do_not_specialize_on_alignment=COLUMNS)
def _decode(
    q_ptr: tl.tensor, k_ptr: tl.tensor, v_ptr: tl.tensor, out_ptr: tl.tensor, part_ptr: tl.tensor, weight_ptr: tl.tensor, table_ptr: tl.tensor,
    slot_ptr: tl.tensor, position_ptr: tl.tensor, share_ptr: tl.tensor,
    table_stride: tl.tensor, scale: tl.tensor, window: tl.tensor,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, P: tl.constexpr, GROUP: tl.constexpr, WIDTH: tl.constexpr,
    BN: tl.constexpr, WINDOW: tl.constexpr, WORDS: tl.constexpr, HALF: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    G: tl.constexpr = H // K
    share = tl.program_id(0)
    member = tl.arange(0, GROUP)
    column = tl.arange(0, WIDTH)
    key = tl.arange(0, BN)
    in_width = (column < D)[None, :]
    is_head = (member < G)[:, None] & in_width
    words_ptr = share_ptr + share * WORDS
    wait(PDL)
    trigger(PDL)
    row = tl.load(words_ptr)
    slot = tl.load(words_ptr + 1)
    length = tl.load(words_ptr + 2)
    kv_head = tl.load(words_ptr + 3)
    tile = tl.load(words_ptr + 4)
    left = tl.load(words_ptr + 5)
    while left > 0:
        low, first, tiles = _tiles(length, window, WINDOW, BN)
        count = tl.minimum(left, tiles - tile)
        begin = first + tile
        head = row.to(tl.int64) * H + kv_head * G + member
        blocks_ptr = table_ptr + slot.to(tl.int64) * table_stride
        position = begin * BN + key
        if P % BN == 0:  # noqa: SIM108  (a tile of one block has a number, another a tensor)
            following = tl.load(blocks_ptr + begin * BN // P)
        else:
            following = tl.load(blocks_ptr + position // P, mask=position < length, other=0)
        q = tl.load(q_ptr + head[:, None] * D + column[None, :], mask=is_head, other=0.0)
        if HALF:
            q = q.to(tl.float16)
        best = tl.full([GROUP], float("-inf"), tl.float32)
        total = tl.zeros([GROUP], tl.float32)
        mixed = tl.zeros([GROUP, WIDTH], tl.float32)
        for step in range(begin, begin + count):
            position = step * BN + key
            block = following.to(tl.int64)
            if P % BN == 0:
                following = tl.load(blocks_ptr + (step + 1) * BN // P, mask=(step + 1) * BN < length, other=0)
                start = ((block * K + kv_head) * P + step * BN % P) * D
                cell = key[:, None] * D + column[None, :]
            else:
                following = tl.load(blocks_ptr + (position + BN) // P, mask=position + BN < length, other=0)
                start = 0
                cell = ((block * K + kv_head) * P + position % P)[:, None] * D + column[None, :]
            seen = position < length
            if WINDOW:
                seen = seen & (position >= low)
            k = tl.load(k_ptr + start + cell) if D == WIDTH else tl.load(k_ptr + start + cell, mask=in_width, other=0.0)
            v = tl.load(v_ptr + start + cell, mask=seen[:, None] & in_width, other=0.0)
            score = tl.where(seen[None, :], tl.dot(q, tl.trans(k.to(q.dtype)), input_precision="ieee") * (scale * LOG2E), float("-inf"))
            higher = tl.maximum(best, tl.max(score, 1))
            weight = tl.exp2(score - higher[:, None])
            shrink = tl.exp2(best - higher)
            total = total * shrink + tl.sum(weight, 1)
            mixed = tl.dot(weight.to(q.dtype), v.to(q.dtype), mixed * shrink[:, None], input_precision="ieee")
            best = higher
        if count == tiles:
            tl.store(out_ptr + head[:, None] * D + column[None, :], (mixed / total[:, None]).to(out_ptr.dtype.element_ty), mask=is_head)
        else:
            # A share has at most one item that an earlier share began and one that a later share ends.
            part = (share * 2 + (tile == 0).to(tl.int32)) * G + member
            tl.store(part_ptr + part[:, None] * D + column[None, :], mixed, mask=is_head)
            tl.store(weight_ptr + part * 2, best, mask=member < G)
            tl.store(weight_ptr + part * 2 + 1, total, mask=member < G)
        left -= count
        tile = tile * 0
        kv_head += 1
        row = tl.where(kv_head == K, row + 1, row)
        kv_head = tl.where(kv_head == K, 0, kv_head)
        slot = tl.load(slot_ptr + row, mask=left > 0, other=0)
        length = tl.load(position_ptr + row, mask=left > 0, other=0) + 1


@triton.jit
def _merge(
    part_ptr: tl.tensor, weight_ptr: tl.tensor, out_ptr: tl.tensor, share_ptr: tl.tensor,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, WORDS: tl.constexpr, PIECES: tl.constexpr, PDL: tl.constexpr,
) -> None:  # fmt: skip
    G: tl.constexpr = H // K
    share = tl.program_id(0)
    member = tl.program_id(1)
    column = tl.arange(0, WIDTH)
    words_ptr = share_ptr + share * WORDS
    pieces = tl.load(words_ptr + 6)
    head = tl.load(words_ptr).to(tl.int64) * H + tl.load(words_ptr + 3) * G + member
    wait(PDL)
    trigger(PDL)
    if pieces > 0:
        best = float("-inf")
        total = 0.0
        mixed = tl.zeros([WIDTH], tl.float32)
        for begin in range(0, pieces + 1, PIECES):
            piece = begin + tl.arange(0, PIECES)
            there = piece <= pieces
            part = (2 * (share + piece - 1) + (piece == 0).to(tl.int32)) * G + member
            bests = tl.load(weight_ptr + part * 2, mask=there, other=float("-inf"))
            totals = tl.load(weight_ptr + part * 2 + 1, mask=there, other=0.0)
            mixes = tl.load(part_ptr + part[:, None] * D + column[None, :], mask=there[:, None] & (column < D)[None, :], other=0.0)
            higher = tl.maximum(best, tl.max(bests, 0))
            weight = tl.exp2(bests - higher)
            shrink = tl.exp2(best - higher)
            total = total * shrink + tl.sum(totals * weight, 0)
            mixed = mixed * shrink + tl.sum(mixes * weight[:, None], 0)
            best = higher
        tl.store(out_ptr + head * D + column, (mixed / total).to(out_ptr.dtype.element_ty), mask=column < D)


def settings_for(rows: int, kv_heads: int, head_dim: int, hopper: bool) -> Settings:
    """The settings measured best in whole steps (bench/GPU.md); `hopper`: of the kernel for Hopper GPUs."""
    items, tile = rows * kv_heads, 16 if head_dim > 64 else 32
    if items >= MANY:
        return Settings(tile, stages=4, way=ITEMS)
    if items >= FEW:
        return Settings(32, programs=4) if hopper and head_dim > 64 else Settings(tile)
    return Settings(tile, programs=4 if hopper and head_dim > 64 and items <= FEWEST else 9, way=LINE)


def share_out(slot_R: Tensor, position_R: Tensor, window: int | None, kv_heads: int, settings: Settings) -> Shares:
    """Shares of the keys that rows at `position_R` see, for `decode`."""
    rows, line = len(slot_R), PROCESSORS * settings.programs
    most = {LINE: line, ITEMS: rows * kv_heads, EITHER: max(line, rows * kv_heads)}[settings.way]
    words, arrived = slot_R.new_empty(most, WORDS), slot_R.new_empty(most)
    launch(
        _share_out, (cdiv(most, PLANNED),), NEVER, slot_R, position_R, words, arrived, rows, kv_heads, line, most, settings.tile, settings.way,
        settings.border, window or 0, ROWS=max(LEAST_ROWS, power_of_two(rows)), WINDOW=window is not None, WORDS=WORDS, PLANNED=PLANNED, num_warps=4,
    )  # fmt: skip
    return Shares(words, arrived, settings)


def decode(
    q_RHD: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    table_NB: Tensor,
    slot_R: Tensor,
    position_R: Tensor,
    shares: Shares,
    window: int | None,
    scale: float,
    out_RHD: Tensor,
    early: bool = False,
) -> None:
    """Softmax(q k^T * scale) v for rows of one token at `position_R`, whose keys lie in blocks `table_NB[slot_R]`, into `out_RHD`.

    `shares`: of these rows and this window. q and out are contiguous, the caches [blocks + 1, K, P, D] of any floating type; sums are in float32.
    `early`: all but the newest key of each row, the table, the columns and the shares were written before the last launch that is not
    programmatically dependent, or before the wait of the kernel before this one.
    """
    _, heads, size = q_RHD.shape
    _, kv_heads, block_size, _ = k_cache.shape
    words, arrived, chosen = shares
    group = heads // kv_heads
    pieces = 0 if chosen.way == ITEMS else 2 * len(words) * group
    parts = q_RHD.new_empty(pieces * (size + 2), dtype=torch.float32)
    weights = parts[pieces * size :]
    where = table_NB, slot_R, position_R, words
    common: dict[str, Any] = {"H": heads, "K": kv_heads, "D": size, "WIDTH": power_of_two(size), "WORDS": WORDS}
    merging = pieces > 0
    if hopper.fits(q_RHD, k_cache, window):
        merging = chosen.way == LINE
        settings = chosen.tile, chosen.stages, not merging, early
        hopper_decode.decode(q_RHD, k_cache, v_cache, *where, arrived, parts, weights, scale, out_RHD, *settings)
    else:
        launch(
            _decode, (len(words),), ALWAYS, q_RHD, k_cache, v_cache, out_RHD, parts, weights, *where, table_NB.stride(0), scale, window or 0,
            P=block_size, GROUP=max(16, power_of_two(group)), BN=chosen.tile, WINDOW=window is not None, HALF=halves(q_RHD, k_cache),
            num_warps=chosen.warps, num_stages=chosen.stages, **common,
        )  # fmt: skip
    if merging:
        when = ALWAYS if len(words) * group <= MOST_WAITING else NEVER
        launch(_merge, (len(words), group), when, parts, weights, out_RHD, words, PIECES=PIECES, num_warps=1, **common)
