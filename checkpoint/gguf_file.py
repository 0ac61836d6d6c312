"""Reads the header of a GGUF file (versions 2 and 3): metadata and the table of tensors, never the tensors themselves.

The file is not trusted: counts, lengths, offsets and nesting are checked against the size of the file before anything is made from them.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
from pathlib import Path

import msgspec
import numpy as np

from checkpoint.errors import CheckpointError
from checkpoint.gguf_kinds import KINDS

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_COUNT = 1 << 24
MAX_KEY_BYTES = 65_535
MAX_NAME_BYTES = 1024
MAX_NESTING = 4
MAX_ARRAYS = 1024
MAX_DIMENSIONS = 4
MAX_ELEMENTS = 1 << 40
STRING, ARRAY, BOOL = 8, 9, 7
NUMBERS: dict[int, np.dtype[np.generic]] = {
    0: np.dtype("<u1"), 1: np.dtype("<i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"), 5: np.dtype("<i4"),
    6: np.dtype("<f4"), 10: np.dtype("<u8"), 11: np.dtype("<i8"), 12: np.dtype("<f8"),
}  # fmt: skip


class GgufTensorInfo(msgspec.Struct, frozen=True):
    """Where a tensor lies. `shape` in torch order (rows, columns); `kind` such as F32 or Q4_1; `offset` from the start of the file, in bytes."""

    shape: tuple[int, ...]
    kind: str
    offset: int
    nbytes: int


class GgufHeader(msgspec.Struct, frozen=True):
    """The header of one file. In `metadata` arrays of strings are lists and arrays of numbers are numpy arrays."""

    version: int
    metadata: dict[str, object]
    tensors: dict[str, GgufTensorInfo]


class Cursor:
    """Reads values one after another from the mapped file; raises CheckpointError instead of reading past its end."""

    def __init__(self, data: mmap.mmap, source: str) -> None:
        self.data = data
        self.size = len(data)
        self.at = 0
        self.source = source

    def fail(self, what: str) -> CheckpointError:
        """The error for broken content at the present position."""
        return CheckpointError(f"{self.source}: damaged GGUF header at byte {self.at}: {what}; download the file again")

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > self.size - self.at:
            raise self.fail("the file ends too early")
        start = self.at
        self.at += count
        return self.data[start : self.at]

    def unsigned(self, width: int) -> int:
        """An unsigned little-endian integer of `width` bytes."""
        return int.from_bytes(self.take(width), "little")

    def count(self, each: int, what: str) -> int:
        """A 64-bit count of things of at least `each` bytes, checked against what is left of the file."""
        number = self.unsigned(8)
        if number > MAX_COUNT or number * each > self.size - self.at:
            raise self.fail(f"{what} count {number} is larger than the file")
        return number

    def string(self, limit: int | None = None) -> str:
        """A length-prefixed UTF-8 string."""
        length = self.unsigned(8)
        if limit is not None and length > limit:
            raise self.fail(f"a name of {length} bytes")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"text is not UTF-8 ({error.reason})") from error

    def strings(self, number: int) -> list[str]:
        """`number` strings. Written out for speed: vocabularies have up to some 300,000 entries."""
        data, at, size, found = self.data, self.at, self.size, []
        for _ in range(number):
            start = at + 8
            at = start + int.from_bytes(data[at:start], "little")
            if at > size or start > size:
                raise self.fail("a string runs past the end of the file")
            found.append(data[start:at])
        self.at = at
        try:
            return [item.decode("utf-8") for item in found]
        except UnicodeDecodeError as error:
            raise self.fail(f"text is not UTF-8 ({error.reason})") from error

    def value(self, code: int, depth: int = 0) -> object:
        """A metadata value of the given type code."""
        if code in NUMBERS:
            dtype = NUMBERS[code]
            return np.frombuffer(self.take(dtype.itemsize), dtype)[0].item()
        if code == BOOL:
            return self.unsigned(1) != 0
        if code == STRING:
            return self.string()
        if code == ARRAY:
            return self.array(depth + 1)
        raise self.fail(f"unknown value type {code}")

    def array(self, depth: int) -> object:
        """An array value: a numpy array for numbers and booleans, a list for strings and arrays."""
        if depth > MAX_NESTING:
            raise self.fail("arrays are nested too deeply")
        code = self.unsigned(4)
        if code in NUMBERS or code == BOOL:
            dtype = NUMBERS.get(code, np.dtype(np.uint8))
            number = self.count(dtype.itemsize, "array")
            values = np.frombuffer(self.take(number * dtype.itemsize), dtype)
            return values.astype(bool) if code == BOOL else values
        if code == STRING:
            return self.strings(self.count(8, "string"))
        if code == ARRAY:
            number = self.count(12, "array")
            if number > MAX_ARRAYS:
                raise self.fail(f"{number} arrays in an array")
            return [self.array(depth + 1) for _ in range(number)]
        raise self.fail(f"unknown array type {code}")


def read_metadata(cursor: Cursor, number: int) -> dict[str, object]:
    """`number` key-value pairs."""
    metadata: dict[str, object] = {}
    for _ in range(number):
        key = cursor.string(MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.fail(f"key {key[:80]!r} appears twice")
        metadata[key] = cursor.value(cursor.unsigned(4))
    return metadata


def read_tensor(cursor: Cursor) -> tuple[str, GgufTensorInfo]:
    """One entry of the tensor table; its offset is still relative to the start of the data."""
    name = cursor.string(MAX_NAME_BYTES)
    dimensions = cursor.unsigned(4)
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise cursor.fail(f"tensor {name[:80]!r} has {dimensions} dimensions")
    shape = tuple(cursor.unsigned(8) for _ in range(dimensions))[::-1]
    code, offset = cursor.unsigned(4), cursor.unsigned(8)
    elements = 1
    for extent in shape:
        elements *= extent
        if not 0 < elements <= MAX_ELEMENTS:
            raise cursor.fail(f"tensor {name[:80]!r} has an impossible shape")
    if code not in KINDS:
        raise cursor.fail(f"tensor {name[:80]!r} has the unknown type {code}")
    kind = KINDS[code]
    if shape[-1] % kind.block:
        raise cursor.fail(f"tensor {name[:80]!r} has rows of {shape[-1]} values, not whole {kind.name} blocks")
    return name, GgufTensorInfo(shape, kind.name, offset, elements // kind.block * kind.size)


def read_tensors(cursor: Cursor, number: int, alignment: int) -> dict[str, GgufTensorInfo]:
    """The tensor table, with offsets from the start of the file that lie inside it."""
    entries: dict[str, GgufTensorInfo] = {}
    for _ in range(number):
        name, info = read_tensor(cursor)
        if name in entries:
            raise cursor.fail(f"tensor {name[:80]!r} appears twice")
        entries[name] = info
    start = -(-cursor.at // alignment) * alignment
    for name, info in entries.items():
        if info.offset % alignment:
            raise cursor.fail(f"tensor {name[:80]!r} is not aligned")
        if start + info.offset + info.nbytes > cursor.size:
            raise cursor.fail(f"tensor {name[:80]!r} lies past the end of the file (is the download complete?)")
    return {name: GgufTensorInfo(info.shape, info.kind, start + info.offset, info.nbytes) for name, info in entries.items()}


def read_alignment(cursor: Cursor, metadata: dict[str, object]) -> int:
    """The alignment of tensor data in bytes."""
    value = metadata.get("general.alignment", 32)
    if not isinstance(value, int) or isinstance(value, bool) or not 8 <= value <= 1 << 16 or value & (value - 1):
        raise cursor.fail(f"alignment {value!r} is not a power of two")
    return value


def refuse_split(metadata: dict[str, object], source: str) -> None:
    """Raises CheckpointError for one part of a file that was cut into several."""
    parts = metadata.get("split.count", 1)
    if not isinstance(parts, int) or parts > 1:
        advice = "which is not supported; join them with `llama-gguf-split --merge`"
        raise CheckpointError(f"{source}: one part of a split GGUF ({parts} parts), {advice}")


def parse_header(data: mmap.mmap, source: str) -> GgufHeader:
    """The header from the mapped file."""
    cursor = Cursor(data, source)
    if data[:4] != MAGIC:
        raise CheckpointError(f"{source}: not a GGUF file")
    cursor.at = 4
    version = cursor.unsigned(4)
    if version not in VERSIONS:
        raise CheckpointError(f"{source}: GGUF version {version} is not supported (2 and 3 are; big-endian files are not)")
    tensors = cursor.count(24, "tensor")
    metadata = read_metadata(cursor, cursor.count(13, "metadata"))
    refuse_split(metadata, source)
    return GgufHeader(version, metadata, read_tensors(cursor, tensors, read_alignment(cursor, metadata)))


def map_file(path: Path) -> mmap.mmap:
    """The whole file, mapped read-only. Raises CheckpointError when it cannot be opened or is empty."""
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error


def read_header(path: Path) -> GgufHeader:
    """The header of the GGUF file at `path`. Raises CheckpointError when the file is not one, is damaged, or is of a form that is not supported."""
    with map_file(path) as data:
        return parse_header(data, str(path))
