"""What comes between the products of a layer."""

from torch import Tensor

from kernels.reference.attention import AttentionBatch, attend
from kernels.reference.rope_kv import rope_kv


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
    """Attention of the step's tokens, whose q, k, v are `qkv_TN` [T, (H + 2K) D], into `out_THD`; their keys and values go into the cache.

    `norms` and `rope` are those of `rope_kv`.
    """
    q_THD = rope_kv(qkv_TN, norms, eps, rope, k_cache, v_cache, batch)
    attend(q_THD, k_cache, v_cache, batch, scale, out_THD)
