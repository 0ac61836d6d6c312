"""Columns: one value per slot or token as packed little-endian bytes, viewed (not copied) with numpy."""

import sys
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U8 = NDArray[np.uint8]


_I32, _I64, _F32, _U8 = np.dtype("<i4"), np.dtype("<i8"), np.dtype("<f4"), np.dtype("u1")


class ColumnError(ValueError):
    """A column's length in bytes does not fit its type or its neighbours."""


def _pack(values: Sequence[float] | NDArray[Any], dtype: np.dtype[Any], code: str) -> bytes:
    if isinstance(values, list) and sys.byteorder == "little":
        return array(code, values).tobytes()  # half the time of an array of numpy
    return np.asarray(values, dtype=dtype).tobytes()


def pack_i32(values: Sequence[int] | NDArray[Any]) -> bytes:
    return _pack(values, _I32, "i")


def pack_i64(values: Sequence[int] | NDArray[Any]) -> bytes:
    return _pack(values, _I64, "q")


def pack_f32(values: Sequence[float] | NDArray[Any]) -> bytes:
    return _pack(values, _F32, "f")


def pack_u8(values: Sequence[int] | NDArray[Any]) -> bytes:
    return _pack(values, _U8, "B")


def pack_slots(slots: I32) -> bytes:
    """A bitmap of distinct slots: slot i is bit i % 8, from the lowest, of byte i // 8. As short as it can be."""
    if not slots.size:
        return b""
    bits = np.zeros(int(slots.max()) + 1, dtype=np.bool_)
    bits[slots] = True
    return np.packbits(bits, bitorder="little").tobytes()


def view_slots(data: bytes) -> I32:
    """The slots of a bitmap, ascending."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(data, dtype=_U8), bitorder="little")).astype(np.int32)


def _view(data: bytes, dtype: np.dtype[Any], length: int | None) -> NDArray[Any]:
    size = dtype.itemsize
    if len(data) % size or (length is not None and len(data) != length * size):
        raise ColumnError(f"column of {len(data)} bytes is not {'whole' if length is None else length} values of {size} bytes")
    return np.frombuffer(data, dtype=dtype)


def view_i32(data: bytes, length: int | None = None) -> I32:
    """Read-only view of an i32 column; `length` is the number of values it must have. Raises ColumnError."""
    return _view(data, _I32, length)


def view_i64(data: bytes, length: int | None = None) -> I64:
    return _view(data, _I64, length)


def view_f32(data: bytes, length: int | None = None) -> F32:
    return _view(data, _F32, length)


def view_u8(data: bytes, length: int | None = None) -> U8:
    return _view(data, _U8, length)
