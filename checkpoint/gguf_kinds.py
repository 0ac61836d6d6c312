"""How GGUF stores the values of a tensor: the kinds by number, their block sizes, and dequantisation of those that are supported."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from checkpoint.errors import CheckpointError


class Kind(NamedTuple):
    """A storage kind: its name, values per block and bytes per block."""

    name: str
    block: int
    size: int


# https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and gguf.constants.GGML_QUANT_SIZES
KINDS = {
    0: Kind("F32", 1, 4), 1: Kind("F16", 1, 2), 2: Kind("Q4_0", 32, 18), 3: Kind("Q4_1", 32, 20), 6: Kind("Q5_0", 32, 22), 7: Kind("Q5_1", 32, 24),
    8: Kind("Q8_0", 32, 34), 9: Kind("Q8_1", 32, 40), 10: Kind("Q2_K", 256, 84), 11: Kind("Q3_K", 256, 110), 12: Kind("Q4_K", 256, 144),
    13: Kind("Q5_K", 256, 176), 14: Kind("Q6_K", 256, 210), 15: Kind("Q8_K", 256, 292), 16: Kind("IQ2_XXS", 256, 66), 17: Kind("IQ2_XS", 256, 74),
    18: Kind("IQ3_XXS", 256, 98), 19: Kind("IQ1_S", 256, 50), 20: Kind("IQ4_NL", 32, 18), 21: Kind("IQ3_S", 256, 110), 22: Kind("IQ2_S", 256, 82),
    23: Kind("IQ4_XS", 256, 136), 24: Kind("I8", 1, 1), 25: Kind("I16", 1, 2), 26: Kind("I32", 1, 4), 27: Kind("I64", 1, 8), 28: Kind("F64", 1, 8),
    29: Kind("IQ1_M", 256, 56), 30: Kind("BF16", 1, 2), 34: Kind("TQ1_0", 256, 54), 35: Kind("TQ2_0", 256, 66), 39: Kind("MXFP4", 32, 17),
}  # fmt: skip
BY_NAME = {kind.name: kind for kind in KINDS.values()}
PLAIN: dict[str, np.dtype[np.generic]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
QUANTISED = ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
SUPPORTED = (*PLAIN, *QUANTISED)


def check_supported(kind: str, name: str) -> None:
    """Raises CheckpointError when tensors of this kind cannot be read."""
    if kind not in SUPPORTED:
        raise CheckpointError(f"tensor {name} is stored as {kind}, which is not supported; use a file with {', '.join(SUPPORTED)}")


def dequantise(raw: NDArray[np.uint8], kind: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """The float32 values, in `shape`, of the stored bytes of a quantised tensor."""
    # gguf takes long to import, and most processes read headers only.
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    layout = BY_NAME[kind]
    rows = raw.reshape(-1, shape[-1] // layout.block * layout.size)
    values: NDArray[np.float32] = dequantize(rows, GGMLQuantizationType[kind])
    return np.ascontiguousarray(values.reshape(shape), dtype=np.float32)
