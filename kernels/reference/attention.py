"""Paged attention over a head-major cache, for a batch that mixes prompt chunks and decode rows.

The cache of one layer is k and v, [blocks + 1, K, P, D] each, so that one (block, head) tile is contiguous; the last block is a dummy for
padding rows. Keys and values are found only through the block table, with int64 addresses. Positions at or past a row's length, and blocks
a row does not own, may hold anything, NaN included: they never reach a result.

A sliding window of w lets a token see exactly w keys, itself included (as transformers masks it).
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from kernels.reference.fp8 import bits, converted, widen

LONGEST_TO_SHORTEST = 2
"""Decode rows are computed together while none spans more than this many times the blocks of the shortest."""
SMALL_BLOCKS = 8


@dataclass(frozen=True)
class _Chunk:
    """One prompt chunk: tokens `first`..`first + count`, keys `low`..`high` within its gathered tiles."""

    first: int
    count: int
    tiles: Tensor
    low: int
    high: int
    mask_CS: Tensor | None


@dataclass(frozen=True)
class _Group:
    """Decode rows computed together. `rows` are token indices (None: `first`.. in order); without a mask all see `low`..`high`."""

    first: int
    count: int
    rows: Tensor | None
    tiles: Tensor
    low: int
    high: int
    hidden_R1S: Tensor | None
    unused: Tensor | None


@dataclass
class AttentionBatch:
    """Where the tokens of one step go in the cache and what they see, for one window. The same for every layer.

    `most_tiles` is what the largest part gathers; `scratch` is made by the first layer and used again by the others.
    """

    cells: Tensor
    chunks: list[_Chunk]
    groups: list[_Group]
    most_tiles: int
    scratch: tuple[Tensor, Tensor] | None = None


def _tiles(blocks_RB: Tensor, kv_heads: int) -> Tensor:
    """Tile numbers [R * K * B]: rows of the cache seen as [blocks * K, P * D]."""
    return (blocks_RB[:, None] * kv_heads + torch.arange(kv_heads)[None, :, None]).flatten()


def cells(table_RB: Tensor, starts: list[int], counts: list[int], kv_heads: int, block_size: int) -> Tensor:
    """Cell numbers [T * K] the new keys are written to: rows of the cache seen as [blocks * K * P, D]."""
    count = torch.tensor(counts)
    row = torch.repeat_interleave(torch.arange(len(counts)), count)
    before = torch.cumsum(count, 0) - count
    position = torch.arange(row.shape[0]) - before[row] + torch.tensor(starts)[row]
    block = table_RB[row, position // block_size]
    head = torch.arange(kv_heads)
    return ((block[:, None] * kv_heads + head) * block_size + (position % block_size)[:, None]).flatten()


def _chunk(blocks_B: Tensor, first: int, start: int, count: int, kv_heads: int, block_size: int, window: int | None) -> _Chunk:
    end = start + count
    oldest = 0 if window is None else max(0, start - window + 1)
    block = oldest // block_size
    tiles = _tiles(blocks_B[None, block : -(-end // block_size)], kv_heads)
    mask = None
    if count > 1 and (start > 0 or (window is not None and window < count)):
        distance = torch.arange(start, end)[:, None] - torch.arange(oldest, end)[None]
        mask = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
    return _Chunk(first, count, tiles, oldest - block * block_size, end - block * block_size, mask)


def _group(table_RB: Tensor, first: int, rows: list[int], lengths: list[int], kv_heads: int, block_size: int, window: int | None) -> _Group:
    """`rows` index `table_RB` and `lengths` (the new token counted); `first` is the token of row 0."""
    length = torch.tensor([lengths[r] for r in rows])
    oldest = torch.zeros_like(length) if window is None else (length - window).clamp(min=0)
    block = oldest // block_size
    blocks = (length + block_size - 1) // block_size - block
    columns = torch.arange(int(blocks.max()))
    column = block[:, None] + torch.where(columns[None] < blocks[:, None], columns[None], 0)
    tiles = _tiles(table_RB[torch.tensor(rows)[:, None], column], kv_heads)
    low, high = oldest - block * block_size, length - block * block_size
    in_order = rows == list(range(len(table_RB)))
    picked = None if in_order else torch.tensor(rows) + first
    if bool((low == low[0]).all()) and bool((high == high[0]).all()):
        return _Group(first, len(rows), picked, tiles, int(low[0]), int(high[0]), None, None)
    span = columns.shape[0] * block_size
    position = torch.arange(span)[None]
    hidden = (position < low[:, None]) | (position >= high[:, None])
    unused = hidden[:, None].expand(-1, kv_heads, -1).flatten().nonzero().flatten()
    return _Group(first, len(rows), picked, tiles, 0, span, hidden.repeat_interleave(kv_heads, 0)[:, None], unused)


def _split(lengths: list[int], block_size: int) -> list[list[int]]:
    """Rows in groups of similar length, so that one long row does not make all others pay for its padding."""
    longest, shortest = -(-max(lengths) // block_size), -(-min(lengths) // block_size)
    if longest <= max(SMALL_BLOCKS, LONGEST_TO_SHORTEST * shortest):
        return [list(range(len(lengths)))]
    groups: list[list[int]] = []
    bound = 0
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        blocks = -(-lengths[row] // block_size)
        if not groups or blocks > bound:
            groups.append([])
            bound = max(SMALL_BLOCKS, LONGEST_TO_SHORTEST * blocks)
        groups[-1].append(row)
    return groups


def plan_attention(
    table_RB: Tensor, starts: list[int], counts: list[int], singles: int, heads: int, kv_heads: int, block_size: int, window: int | None = None
) -> AttentionBatch:
    """Plan one step of R rows, whose tokens are concatenated in row order.

    `table_RB`: int64 block ids, valid up to each row's end. Row r computes positions starts[r]..starts[r] + counts[r]; everything before is
    in the cache. The last `singles` rows have one token each and are batched; the others run one by one. `heads` is for sets that tile by it.
    """
    chunks, first = [], 0
    prompts = len(counts) - singles
    for row in range(prompts):
        chunks.append(_chunk(table_RB[row], first, starts[row], counts[row], kv_heads, block_size, window))
        first += counts[row]
    groups = []
    if singles:
        lengths, table = [start + 1 for start in starts[prompts:]], table_RB[prompts:]
        groups = [_group(table, first, rows, lengths, kv_heads, block_size, window) for rows in _split(lengths, block_size)]
    parts: list[_Chunk | _Group] = [*chunks, *groups]
    most = max((len(part.tiles) for part in parts), default=0)
    return AttentionBatch(cells(table_RB, starts, counts, kv_heads, block_size), chunks, groups, most)


def write_kv(k_cache: Tensor, v_cache: Tensor, k_TKD: Tensor, v_TKD: Tensor, batch: AttentionBatch) -> None:
    """Put the keys and values of the step's tokens into their cells of one layer's cache, [blocks + 1, K, P, D]."""
    write_cells(k_cache, v_cache, k_TKD, v_TKD, batch.cells)


def write_cells(k_cache: Tensor, v_cache: Tensor, k_TKD: Tensor, v_TKD: Tensor, cells: Tensor) -> None:
    """As `write_kv`, with the number of each cell."""
    size = k_cache.shape[-1]
    for cache, x_TKD in ((k_cache, k_TKD), (v_cache, v_TKD)):
        bits(cache).view(-1, size).index_copy_(0, cells, bits(converted(x_TKD.reshape(-1, size), cache.dtype)))


def copy_blocks(cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy whole blocks of a cache [layers, blocks + 1, K, P, D] (copy-on-write), all sources read before any target is written."""
    moved = bits(cache)
    moved.index_copy_(1, targets, moved.index_select(1, sources))


def _gather(cache: Tensor, tiles: Tensor, out: Tensor) -> None:
    """Rows `tiles` of the cache in the type of the queries."""
    if cache.dtype == out.dtype:
        torch.index_select(cache, 0, tiles, out=out)
    else:
        widen(cache.index_select(0, tiles), out)


def _attend_chunk(q_THD: Tensor, k_KSD: Tensor, v_KSD: Tensor, part: _Chunk, scale: float, out_THD: Tensor) -> None:
    kv_heads, keys, size = k_KSD.shape
    tokens = slice(part.first, part.first + part.count)
    q_KGCD = q_THD[tokens].view(part.count, kv_heads, -1, size).permute(1, 2, 0, 3)
    shape = (kv_heads, q_KGCD.shape[1], keys, size)
    result = functional.scaled_dot_product_attention(
        q_KGCD,
        k_KSD[:, None].expand(shape),
        v_KSD[:, None].expand(shape),
        attn_mask=part.mask_CS,
        is_causal=part.mask_CS is None and part.count > 1,
        scale=scale,
    )
    out_THD[tokens] = result.permute(2, 0, 1, 3).reshape(part.count, -1, size)


def _attend_group(q_THD: Tensor, k_KSD: Tensor, v_KSD: Tensor, part: _Group, scale: float, out_THD: Tensor) -> None:
    """`k_KSD` has the tiles of all rows, [R * K, S, D]."""
    tokens = slice(part.first, part.first + part.count)
    q_RHD = q_THD[tokens] if part.rows is None else q_THD.index_select(0, part.rows)
    q_KGD = q_RHD.reshape(k_KSD.shape[0], -1, k_KSD.shape[2])
    scores = torch.bmm(q_KGD, k_KSD.transpose(1, 2)).mul_(scale)
    if part.hidden_R1S is not None:
        scores.masked_fill_(part.hidden_R1S, -torch.inf)
    result = torch.bmm(torch.softmax(scores, -1), v_KSD).view(part.count, -1, k_KSD.shape[2])
    if part.rows is None:
        out_THD[tokens] = result
    else:
        out_THD.index_copy_(0, part.rows, result)


def attend(q_THD: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float, out_THD: Tensor) -> None:
    """Softmax(q k^T * scale) v for every token of the step, into `out_THD`. The step's own keys must already be written (`write_kv`)."""
    _, kv_heads, block_size, size = k_cache.shape
    width = block_size * size
    k_tiles, v_tiles = k_cache.view(-1, width), v_cache.view(-1, width)
    if batch.scratch is None:
        batch.scratch = q_THD.new_empty(batch.most_tiles, width), q_THD.new_empty(batch.most_tiles, width)
    scratch_k, scratch_v = batch.scratch
    parts: list[_Chunk | _Group] = [*batch.chunks, *batch.groups]
    for part in parts:
        found = len(part.tiles)
        k, v = scratch_k[:found], scratch_v[:found]
        _gather(k_tiles, part.tiles, k)
        _gather(v_tiles, part.tiles, v)
        if isinstance(part, _Chunk):
            k, v = (x.view(kv_heads, -1, size)[:, part.low : part.high] for x in (k, v))
            _attend_chunk(q_THD, k, v, part, scale, out_THD)
            continue
        if part.unused is not None:
            v.view(-1, size).index_fill_(0, part.unused, 0.0)
        k, v = (x.view(part.count * kv_heads, -1, size)[:, part.low : part.high] for x in (k, v))
        _attend_group(q_THD, k, v, part, scale, out_THD)
