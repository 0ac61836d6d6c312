"""A layer on a CPU in float32, every row in one order: kernels.native.rows between products whose rows are summed alike however many there are.

Twins are those of kernels.reference with the same names. What is left to torch here rounds each number by itself.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels.native.rows import attend, rms_norm, silu_mul
from kernels.reference.attention import cells, write_cells
from kernels.reference.products import Product


@dataclass(frozen=True, kw_only=True)
class Batch:
    """int64: `cells` the new keys are written to, and what `kernels.native.rows.attend` takes."""

    cells: Tensor
    table: Tensor
    slot: Tensor
    position: Tensor
    window: int | None


def plan_attention(
    table_RB: Tensor, starts: list[int], counts: list[int], singles: int, heads: int, kv_heads: int, block_size: int, window: int | None = None
) -> Batch:
    """As kernels.reference.attention.plan_attention; decode rows are tokens like others."""
    count = torch.tensor(counts)
    slot = torch.repeat_interleave(torch.arange(len(counts)), count)
    position = torch.arange(len(slot)) + (torch.tensor(starts) - (torch.cumsum(count, 0) - count))[slot]
    table = table_RB.to(torch.int64).contiguous()
    return Batch(cells=cells(table, starts, counts, kv_heads, block_size), table=table, slot=slot, position=position, window=window)


def _rotate(x_TND: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Each product is rounded before the sum: one instruction for both would be used in some places of a tensor and not in others."""
    return x_TND * cos_TD[:, None] + torch.roll(x_TND, x_TND.shape[-1] // 2, -1) * sin_TD[:, None]


def rope_attend(
    qkv_TN: Tensor,
    norms: tuple[Tensor, Tensor] | None,
    eps: float,
    rope: tuple[Tensor, Tensor],
    k_cache: Tensor,
    v_cache: Tensor,
    batch: Batch,
    scale: float,
    out_THD: Tensor,
) -> None:
    """As kernels.reference.decode_row.rope_attend."""
    _, kv_heads, _, size = k_cache.shape
    heads = qkv_TN.view(len(qkv_TN), -1, size)
    q, k, v = heads.split((heads.shape[1] - 2 * kv_heads, kv_heads, kv_heads), 1)
    if norms is not None:
        q, k = rms_norm(q, norms[0], eps), rms_norm(k, norms[1], eps)
    write_cells(k_cache, v_cache, _rotate(k, *rope), v, batch.cells)
    out_THD.copy_(attend(_rotate(q, *rope), k_cache, v_cache, batch.table, batch.slot, batch.position, batch.window, scale))


def norm_linear(x_TM: Tensor, norm_M: Tensor, eps: float, product: Product, dtype: torch.dtype | None = None, ready: Any = None) -> Tensor:
    """As kernels.reference.products.norm_linear."""
    return product(rms_norm(x_TM, norm_M, eps))


def norm_gate_up(x_TM: Tensor, norm_M: Tensor, eps: float, product: Product, ready: Any = None) -> Tensor:
    """As kernels.reference.products.norm_gate_up."""
    return silu_mul(product(rms_norm(x_TM, norm_M, eps)))


def add_rms_norm(residual: Tensor, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As kernels.reference.norm.add_rms_norm."""
    return rms_norm(residual.add_(x), weight, eps)
