"""Paged attention in Triton over a head-major cache, for a batch that mixes prompt chunks and decode rows. Twin of kernels.reference.attention.

A token is described by two device columns: `slot`, its row of the block table, and `position`. Decode rows need nothing else, so a captured
graph replays with new columns; prompt chunks are cut into tiles of consecutive tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels import hopper, hopper_prefill
from kernels.decode_attention import Shares, decode, settings_for, share_out
from kernels.prefill_attention import prefill, tile_tokens
from kernels.reference import attention as reference

copy_blocks = reference.copy_blocks


@dataclass(kw_only=True)
class AttentionBatch:
    """Where the tokens of one step go in the cache and what they see, for one window. The same for every layer.

    Device tensors, int32: `table` [N, B] of block ids; `slot` and `position` [T]; `tiles` [tiles, 2], first token and count, of the prompt
    chunks, the costliest first. The last `singles` tokens are decode rows, whose `shares` the first layer works out for all.
    """

    table: Tensor
    slot: Tensor
    position: Tensor
    tiles: Tensor
    singles: int
    window: int | None
    shares: Shares | None = None


def _tiles(starts: list[int], counts: list[int], size: int) -> list[tuple[int, int]]:
    """Tiles of at most `size` tokens, by falling position: the programs that read most keys start first."""
    found, first = [], 0
    for start, count in zip(starts, counts, strict=True):
        found += [(start + done, first + done, min(size, count - done)) for done in range(0, count, size)]
        first += count
    return [(token, count) for _, token, count in sorted(found, reverse=True)]


def plan_attention(
    table_RB: Tensor, starts: list[int], counts: list[int], singles: int, heads: int, kv_heads: int, block_size: int, window: int | None = None
) -> AttentionBatch:
    """Plan one step of R rows, whose tokens are concatenated in row order, on the device of `table_RB`.

    `table_RB`: integer block ids, valid up to each row's end. Row r computes positions starts[r]..starts[r] + counts[r]; everything before
    is in the cache. The last `singles` rows have one token each and are decode rows.
    """
    device, prompts = table_RB.device, len(counts) - singles
    count = np.array(counts, np.int32)
    slot = np.repeat(np.arange(len(counts), dtype=np.int32), count)
    first = np.cumsum(count, dtype=np.int32) - count
    position = np.arange(len(slot), dtype=np.int32) + np.repeat(np.array(starts, np.int32) - first, count)
    tiles = np.array(_tiles(starts[:prompts], counts[:prompts], tile_tokens(heads // kv_heads)), np.int32)
    columns = torch.from_numpy(np.concatenate((slot, position, tiles.reshape(-1)))).to(device, non_blocking=True)
    tokens = len(slot)
    return AttentionBatch(
        table=table_RB.to(torch.int32),
        slot=columns[:tokens],
        position=columns[tokens : 2 * tokens],
        tiles=columns[2 * tokens :].view(-1, 2),
        singles=singles,
        window=window,
    )


def plan_shares(batch: AttentionBatch, q_THD: Tensor, k_cache: Tensor) -> None:
    """Share out the keys of the batch's decode rows, once for all layers, for `attend` with queries and keys like these."""
    if batch.singles and batch.shares is None:
        rows, kv_heads, size = slice(len(batch.slot) - batch.singles, None), k_cache.shape[1], q_THD.shape[2]
        settings = settings_for(batch.singles, kv_heads, size, hopper.fits(q_THD, k_cache, batch.window))
        batch.shares = share_out(batch.slot[rows], batch.position[rows], batch.window, kv_heads, settings)


def attend(q_THD: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, scale: float, out_THD: Tensor) -> None:
    """Softmax(q k^T * scale) v for every token of the step, into `out_THD`. The step's own keys must already be written (`rope_kv`).

    Decode rows whose shares were planned before the launch of `rope_kv` start early, see `kernels.decode_attention.decode`.
    """
    early = batch.shares is not None
    plan_shares(batch, q_THD, k_cache)
    if len(batch.tiles):
        tiles = batch.table, batch.slot, batch.position, batch.tiles
        if hopper.fits(q_THD, k_cache, batch.window):
            hopper_prefill.prefill(q_THD, k_cache, v_cache, *tiles, scale, out_THD)
        else:
            prefill(q_THD, k_cache, v_cache, *tiles, batch.window, scale, out_THD)
    if batch.shares is not None:
        rows = slice(len(q_THD) - batch.singles, None)
        where = batch.table, batch.slot[rows], batch.position[rows], batch.shares
        decode(q_THD[rows], k_cache, v_cache, *where, batch.window, scale, out_THD[rows], early)
