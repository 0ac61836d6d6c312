"""What comes between the products of a layer, for prompt chunks and decode rows in one order of keys. Twin of kernels.reference.decode_row.

On Hopper GPUs prompt chunks and decode rows have a kernel each, which give the same bits; otherwise one kernel takes both.
"""

import torch
from torch import Tensor

from kernels import hopper, hopper_prefill
from kernels.attention import AttentionBatch
from kernels.decode_attention import ITEMS, Settings, share_out
from kernels.invariant.hopper_rows import attend_rows
from kernels.prefill_attention import Settings as PlainSettings
from kernels.prefill_attention import prefill
from kernels.rope_kv import Settings as RopeSettings
from kernels.rope_kv import rope_kv

TILE, STAGES = 64, 4
"""Keys of a tile in both kernels, and tiles in shared memory for chunks."""
PLAIN = PlainSettings(tile=TILE, warps=4, stages=2, one_loop=True)
PLAIN_WIDE = PlainSettings(tile=32, warps=8, stages=2, one_loop=True)
"""For elements of two bytes or fewer, and of four."""
ROPE = RopeSettings(8, 4)
"""One layout of the norms' sums."""


def _chunks(q_THD: Tensor, k_cache: Tensor, v_cache: Tensor, batch: AttentionBatch, tiles: Tensor, scale: float, out_THD: Tensor) -> None:
    where = batch.table, batch.slot, batch.position, tiles
    if hopper.fits(q_THD, k_cache, batch.window):
        hopper_prefill.prefill(q_THD, k_cache, v_cache, *where, scale, out_THD, hopper_prefill.Settings(TILE, STAGES))
    else:
        settings = PLAIN_WIDE if q_THD.element_size() > 2 else PLAIN
        prefill(q_THD, k_cache, v_cache, *where, batch.window, scale, out_THD, settings)


def _single_tiles(batch: AttentionBatch) -> Tensor:
    """The decode rows as tiles of one token."""
    tokens = torch.arange(len(batch.slot) - batch.singles, len(batch.slot), dtype=torch.int32, device=batch.slot.device)
    return torch.stack((tokens, torch.ones_like(tokens)), 1)


def rope_attend(
    qkv_TN: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    rope: tuple[Tensor, Tensor],
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
    scale: float,
    out_THD: Tensor,
) -> None:
    """Attention of the step's tokens into `out_THD`, and their keys and values into the cache."""
    rows, kv_heads = slice(len(batch.slot) - batch.singles, None), k_cache.shape[1]
    fits, early = hopper.fits(out_THD, k_cache, batch.window), batch.shares is not None
    if fits and batch.singles and not early:
        batch.shares = share_out(batch.slot[rows], batch.position[rows], None, kv_heads, Settings(TILE, way=ITEMS))
    q_THD = rope_kv(qkv_TN, norms, eps, rope, k_cache, v_cache, batch, ROPE)
    if len(batch.tiles):
        _chunks(q_THD, k_cache, v_cache, batch, batch.tiles, scale, out_THD)
    if not batch.singles:
        return
    if batch.shares is None:
        _chunks(q_THD, k_cache, v_cache, batch, _single_tiles(batch), scale, out_THD)
        return
    stages = 2 if k_cache.shape[3] > 64 else 3  # measured best, and no part of the result
    attend_rows(q_THD[rows], k_cache, v_cache, batch.table, batch.shares.words, scale, out_THD[rows], TILE, stages, True)
