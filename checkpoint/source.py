"""What an open checkpoint offers, whatever its format."""

from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray


class TensorInfo(msgspec.Struct, frozen=True):
    """Shape and dtype as `TensorSource.read` gives them: float32, float16, bfloat16, or another word for what cannot be read.

    `kind`: how the file stores the values (F32, F16, BF16, Q4_1, ...).
    """

    shape: tuple[int, ...]
    dtype: str
    kind: str


class RawTensor(msgspec.Struct, frozen=True):
    """Stored bytes, one row of `data` (uint8 [rows, bytes]) per row of the tensor; `kind` and `shape` as in TensorInfo."""

    kind: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


class TensorSource(Protocol):
    """An open checkpoint. Arrays may be read-only views of the mapped file and stay valid after `close`."""

    def names(self) -> dict[str, TensorInfo]:
        """All tensors by name."""
        ...

    def read(self, name: str) -> NDArray[np.generic]:
        """The values: float32, float16, or uint16 holding bfloat16; quantised ones dequantised to float32. Raises CheckpointError."""
        ...

    def read_raw(self, name: str) -> RawTensor:
        """The values as they are stored, rows in the same order as `read` gives. Raises CheckpointError."""
        ...

    def close(self) -> None:
        """Lets go of the files."""
        ...
