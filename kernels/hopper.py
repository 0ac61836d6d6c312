"""What the kernels for Hopper GPUs (compute capability 9) share: when they can be used, and descriptors of memory for its copy engine."""

import functools

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.launch import on_hopper

BOX = 16
"""Keys of a block that one copy brings."""
COLUMNS = 64
"""Elements of two bytes in a row of shared memory, which is swizzled over 128 bytes: what one copy brings of a key."""
MOST_CELLS = 1 << 31
GROUPS = (1, 2, 4, 8, 16)


class _Place:
    """Stands for a tensor in a descriptor, which would keep the memory of a tensor alive."""

    def __init__(self, pointer: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._pointer = pointer

    def data_ptr(self) -> int:
        return self._pointer


@functools.lru_cache(1024)
def _descriptor(pointer: int, dtype: torch.dtype, shape: tuple[int, ...], box: tuple[int, ...]) -> TensorDescriptor:
    """Of contiguous memory. Making one takes longer than launching a kernel, and the same places come again and again."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return TensorDescriptor(_Place(pointer, dtype), list(shape), strides, list(box), gl.NVMMASharedLayout(128, 16, rank=len(box)))


def cells_of(cache: Tensor) -> TensorDescriptor:
    """One layer's keys or values [blocks + 1, K, P, D] as rows of D, in boxes of `BOX` rows."""
    size = cache.shape[-1]
    return _descriptor(cache.data_ptr(), cache.dtype, (cache.numel() // size, size), (BOX, COLUMNS))


def matrix_of(x_TM: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """A contiguous matrix in boxes of `rows` x `columns`, zero past its edges; what memory of the same tensor lies behind it comes as it is."""
    count, size = x_TM.shape
    whole = -(-count // rows) * rows
    if whole * size * x_TM.element_size() <= x_TM.untyped_storage().nbytes() - x_TM.storage_offset() * x_TM.element_size():
        count = whole
    return _descriptor(x_TM.data_ptr(), x_TM.dtype, (count, size), (rows, columns))


def rows_of(q_THD: Tensor, rows: int, group: int) -> TensorDescriptor:
    """Queries in boxes of `rows` rows: all `group` heads of one key/value head, of as many tokens as that makes."""
    return _descriptor(q_THD.data_ptr(), q_THD.dtype, tuple(q_THD.shape), (rows // group, group, COLUMNS))


def fits(q_THD: Tensor, k_cache: Tensor, window: int | None) -> bool:
    """Whether the Hopper kernels take these: all keys are seen, types of two bytes, whole boxes, a power of two of query heads a key/value head."""
    _, heads, size = q_THD.shape
    _, kv_heads, block_size, _ = k_cache.shape
    shapes = size in (COLUMNS, 2 * COLUMNS) and block_size % BOX == 0 and heads // kv_heads in GROUPS and k_cache.numel() // size < MOST_CELLS
    types = q_THD.dtype == k_cache.dtype and q_THD.dtype in (torch.bfloat16, torch.float16)
    return shapes and types and window is None and on_hopper(q_THD.device)
