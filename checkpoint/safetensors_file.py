"""Reads *.safetensors files through the safetensors library, which checks the header; tensors are views of the mapped file.

The library's numpy side knows no bfloat16, so values are viewed here: tensors lie in offset order behind the header without gaps, which the
library enforces. Format: https://github.com/huggingface/safetensors#format
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from checkpoint.errors import CheckpointError
from checkpoint.gguf_file import map_file

DTYPES: dict[str, tuple[str, np.dtype[np.generic]]] = {
    "F32": ("float32", np.dtype("<f4")),
    "F16": ("float16", np.dtype("<f2")),
    "BF16": ("bfloat16", np.dtype("<u2")),
}
BITS = {"F64": 64, "I64": 64, "U64": 64, "C64": 64, "I32": 32, "U32": 32, "F32": 32, "I16": 16, "U16": 16, "F16": 16, "BF16": 16}
BITS |= {"I8": 8, "U8": 8, "BOOL": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8}
BITS |= {"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4}


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
        self.entries = read_entries(path)
        self.data = map_file(path)

    def read(self, name: str) -> NDArray[np.generic]:
        """The tensor's values as a read-only view of the file: float32, float16, or uint16 for bfloat16."""
        stored = self.entries[name]
        for word, dtype in DTYPES.values():
            if word == stored.dtype:
                raw = np.frombuffer(self.data, np.uint8, stored.end - stored.begin, stored.begin)
                values: NDArray[np.generic] = (raw if stored.begin % dtype.itemsize == 0 else raw.copy()).view(dtype)
                return values.reshape(stored.shape)
        raise CheckpointError(f"{self.path}: tensor {name} has dtype {stored.dtype}; float32, float16 and bfloat16 are supported")


def read_entries(path: Path) -> dict[str, Stored]:
    """The header of the file: where every tensor lies. The library refuses offsets that overlap, leave gaps or pass the end of the file."""
    try:
        with path.open("rb") as file:
            begin = 8 + int.from_bytes(file.read(8), "little")
        with safe_open(path, framework="np") as opened:
            return _entries(opened, begin, str(path))
    except (SafetensorError, OSError, TypeError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file ({error}); download it again") from error


def _entries(opened: Any, begin: int, source: str) -> dict[str, Stored]:
    entries: dict[str, Stored] = {}
    for name in opened.offset_keys():
        part = opened.get_slice(name)
        shape, kind = tuple(part.get_shape()), part.get_dtype()
        bits = BITS.get(kind)
        if bits is None:
            raise CheckpointError(f"{source}: tensor {name[:80]!r} has the unknown dtype {kind[:20]!r}")
        elements = 1
        for extent in shape:
            elements *= extent
        end = begin + elements * bits // 8
        entries[name] = Stored(shape, DTYPES[kind][0] if kind in DTYPES else kind, begin, end)
        begin = end
    return entries
