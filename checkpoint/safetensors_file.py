"""Reads *.safetensors files: the header is checked against the size of the file, the tensors are views of the mapped file.

Format: https://github.com/huggingface/safetensors#format
"""

import mmap
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from checkpoint.errors import CheckpointError
from checkpoint.fields import decode_object
from checkpoint.gguf_file import map_file

MAX_HEADER_BYTES = 100_000_000
DTYPES: dict[str, tuple[str, np.dtype[np.generic]]] = {
    "F32": ("float32", np.dtype("<f4")),
    "F16": ("float16", np.dtype("<f2")),
    "BF16": ("bfloat16", np.dtype("<u2")),
}
BITS = {
    "F64": 64,
    "I64": 64,
    "U64": 64,
    "I32": 32,
    "U32": 32,
    "I16": 16,
    "U16": 16,
    "I8": 8,
    "U8": 8,
    "BOOL": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
}


class Entry(msgspec.Struct, frozen=True):
    """One tensor of a header, as it is written there. `data_offsets`: begin and end in bytes after the header."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class Stored(msgspec.Struct, frozen=True):
    """Where a tensor lies: `begin` and `end` in bytes from the start of the file; `dtype` is float32, float16, bfloat16 or the file's own word."""

    shape: tuple[int, ...]
    dtype: str
    begin: int
    end: int


class SafetensorsFile:
    """One open file. `entries` by tensor name. Raises CheckpointError when the file is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data = map_file(path)
        try:
            self.entries = read_entries(self.data, str(path))
        except CheckpointError:
            self.data.close()
            raise

    def read(self, name: str) -> NDArray[np.generic]:
        """The tensor's values as a read-only view of the file: float32, float16, or uint16 for bfloat16."""
        stored = self.entries[name]
        for word, dtype in DTYPES.values():
            if word == stored.dtype:
                raw = np.frombuffer(self.data, np.uint8, stored.end - stored.begin, stored.begin)
                values: NDArray[np.generic] = (raw if stored.begin % dtype.itemsize == 0 else raw.copy()).view(dtype)
                return values.reshape(stored.shape)
        raise CheckpointError(f"{self.path}: tensor {name} has dtype {stored.dtype}; float32, float16 and bfloat16 are supported")


def header_bytes(data: mmap.mmap, source: str) -> bytes:
    """The JSON text at the start of the file."""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 10 or not 2 <= length <= min(MAX_HEADER_BYTES, len(data) - 8):
        raise CheckpointError(f"{source}: not a safetensors file, or it was cut off; download it again")
    return data[8 : 8 + length]


def check_entry(name: str, value: object, size: int, source: str) -> Entry:
    """One entry of the header with its shape, dtype and offsets agreeing and within `size` bytes."""
    try:
        entry = msgspec.convert(value, Entry)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{source}: damaged header, tensor {name[:80]!r}: {error}") from error
    bits = DTYPES[entry.dtype][1].itemsize * 8 if entry.dtype in DTYPES else BITS.get(entry.dtype)
    if bits is None:
        raise CheckpointError(f"{source}: tensor {name[:80]!r} has the unknown dtype {entry.dtype[:20]!r}")
    elements = 1
    for extent in entry.shape:
        elements *= extent
        if not 0 <= extent <= size or elements > size * 8:
            raise CheckpointError(f"{source}: tensor {name[:80]!r} has an impossible shape")
    begin, end = entry.data_offsets
    if not 0 <= begin <= end <= size or (end - begin) * 8 != elements * bits:
        raise CheckpointError(f"{source}: tensor {name[:80]!r} does not fit its place in the file; download it again")
    return entry


def place(entry: Entry, start: int) -> Stored:
    """The entry with offsets from the start of the file."""
    begin, end = entry.data_offsets
    word = DTYPES[entry.dtype][0] if entry.dtype in DTYPES else entry.dtype
    return Stored(tuple(entry.shape), word, start + begin, start + end)


def read_entries(data: mmap.mmap, source: str) -> dict[str, Stored]:
    """The checked header of the mapped file: tensors lie inside the file and do not overlap."""
    raw = header_bytes(data, source)
    start = 8 + len(raw)
    values = decode_object(raw, source)
    values.pop("__metadata__", None)
    found = {name: check_entry(name, value, len(data) - start, source) for name, value in values.items()}
    end = 0
    for name, entry in sorted(found.items(), key=lambda item: item[1].data_offsets):
        if entry.data_offsets[0] < end:
            raise CheckpointError(f"{source}: tensor {name[:80]!r} overlaps another; the file is damaged")
        end = entry.data_offsets[1]
    return {name: place(entry, start) for name, entry in found.items()}
