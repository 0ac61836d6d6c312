"""From the q, k, v product to what attention reads: per-head norms, rotation, keys and values into the cache."""

import torch
from torch import Tensor

from kernels.reference.attention import AttentionBatch, write_kv
from kernels.reference.norm import rms_norm
from kernels.reference.rope import rotate


def rope_rows(cos: Tensor, sin: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """What `rope_kv` takes as `rope`: the rows of the tables for the step's int64 `positions` [T], once for all layers."""
    return cos.index_select(0, positions), sin.index_select(0, positions)


def rope_kv(
    qkv_TN: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    rope: tuple[Tensor, Tensor],
    k_cache: Tensor,
    v_cache: Tensor,
    batch: AttentionBatch,
) -> Tensor:
    """The rotated queries [T, H, D] of `qkv_TN` [T, (H + 2K) D]; its keys, rotated too, and values go into one layer's cache.

    `norms`: weights [D] of the RMSNorm of every query and key head before the rotation, in families that have it.
    """
    _, kv_heads, _, size = k_cache.shape
    heads = qkv_TN.view(len(qkv_TN), -1, size)
    count = heads.shape[1] - 2 * kv_heads
    qk, v = heads.split((count + kv_heads, kv_heads), 1)
    if norms is not None:
        q, k = qk.split((count, kv_heads), 1)
        qk = torch.cat((rms_norm(q, norms[0], eps), rms_norm(k, norms[1], eps)), 1)
    rotated = rotate(qk, *rope)
    write_kv(k_cache, v_cache, rotated[:, count:], v, batch)
    return rotated[:, :count]
