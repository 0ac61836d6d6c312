"""Columns: one value per slot or token as packed little-endian bytes, viewed (not copied) with numpy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


class ColumnError(ValueError):
    """A column's length in bytes does not fit its type or its neighbours."""


def pack_i32(values: Sequence[int] | NDArray[Any]) -> bytes:
    return np.asarray(values, dtype="<i4").tobytes()


def pack_i64(values: Sequence[int] | NDArray[Any]) -> bytes:
    return np.asarray(values, dtype="<i8").tobytes()


def pack_f32(values: Sequence[float] | NDArray[Any]) -> bytes:
    return np.asarray(values, dtype="<f4").tobytes()


def pack_u8(values: Sequence[int] | NDArray[Any]) -> bytes:
    return np.asarray(values, dtype="u1").tobytes()


def _view(data: bytes, dtype: str, length: int | None) -> NDArray[Any]:
    size = np.dtype(dtype).itemsize
    if len(data) % size or (length is not None and len(data) != length * size):
        raise ColumnError(f"column of {len(data)} bytes is not {'whole' if length is None else length} values of {size} bytes")
    return np.frombuffer(data, dtype=dtype)


def view_i32(data: bytes, length: int | None = None) -> I32:
    """Read-only view of an i32 column; `length` is the number of values it must have. Raises ColumnError."""
    return _view(data, "<i4", length)


def view_i64(data: bytes, length: int | None = None) -> I64:
    return _view(data, "<i8", length)


def view_f32(data: bytes, length: int | None = None) -> F32:
    return _view(data, "<f4", length)


def view_u8(data: bytes, length: int | None = None) -> U8:
    return _view(data, "u1", length)
