"""What kernels/native/one_order.c computes on float32 tensors of a CPU: every row alone, in one order of sums."""

import ctypes

import torch
from torch import Tensor

from kernels.native import build


def _library() -> ctypes.CDLL:
    found = build.library()
    if found is None:
        raise ValueError("there is no compiled kernel here")
    return found


def _check(*tensors: Tensor) -> None:
    for x in tensors:
        if x.dtype != torch.float32 or x.device.type != "cpu":
            raise ValueError(f"a tensor is {x.dtype} on {x.device}, not float32 on a CPU")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, of any number of rows."""
    x, weight = x.contiguous(), weight.contiguous()
    _check(x, weight)
    out, size = torch.empty_like(x), weight.numel()
    rows = x.numel() // size
    _library().pagewire_norm(x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, size, eps, torch.get_num_threads())
    return out


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up for `gate_up` [T, 2N], gate first; gives [T, N]."""
    gate_up = gate_up.contiguous()
    _check(gate_up)
    rows, both = gate_up.shape
    out = gate_up.new_empty(rows, both // 2)
    _library().pagewire_gate(gate_up.data_ptr(), out.data_ptr(), rows, both // 2, torch.get_num_threads())
    return out


def attend(
    q_THD: Tensor, k_cache: Tensor, v_cache: Tensor, table_RB: Tensor, slot_T: Tensor, position_T: Tensor, window: int | None, scale: float
) -> Tensor:
    """Softmax(q k^T * scale) v [T, H, D] of tokens at `position_T` of the rows `slot_T` of `table_RB`, all int64.

    Caches are [blocks + 1, K, P, D]; the step's own keys must already be in them.
    """
    columns = [x.contiguous() for x in (table_RB, slot_T, position_T)]
    q, caches = q_THD.contiguous(), (k_cache, v_cache)
    _check(q, *caches)
    if any(x.dtype != torch.int64 for x in columns) or not all(x.is_contiguous() for x in caches):
        raise ValueError("tables are int64, caches contiguous")
    out = torch.empty_like(q)
    tokens, heads, size = q.shape
    _, kv_heads, block, _ = k_cache.shape
    pointers = [x.data_ptr() for x in (q, *caches, *columns, out)]
    numbers = tokens, heads, kv_heads, block, size, table_RB.shape[1], window or 0
    if _library().pagewire_attend(*pointers, *numbers, scale, torch.get_num_threads()):
        raise MemoryError("no memory for attention")
    return out
