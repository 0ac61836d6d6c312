"""Matrix products on CPU with weights that stay in GGUF's 4 or 8 bits, or in float32; the arithmetic is float32 and in one order for any rows."""

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.native import build

Bytes = NDArray[np.uint8]

PANEL = 16
"""Rows of the weight that the kernel takes together."""
MANY_ROWS = 48
"""Rows of input from which a panel is better expanded once than decoded for every few of them."""


class Layout(NamedTuple):
    """One of the kernel's storage kinds: its number, values and bytes of a group, and where the codes start."""

    number: int
    values: int
    size: int
    codes: int


FOUR, EIGHT, EIGHT_SMALL = Layout(0, 32, 24, 8), Layout(1, 32, 36, 4), Layout(2, 16, 20, 4)
"""Bytes are per row: scale, offset (4 bits only), codes."""
DENSE = 3
"""The storage kind of float32."""


class Groups(NamedTuple):
    """Rows of weights as groups along K: float32 `scale` and `offset` [rows, groups], `codes` [rows, groups, bytes] as GGUF orders Q4_1 or Q8_0.

    Nibbles count from 0 here. The kernel's are signed, which keeps the sums small: 8 less, and the offset so much more.
    """

    layout: Layout
    scale: NDArray[np.float32]
    offset: NDArray[np.float32] | None
    codes: Bytes


def _half(data: Bytes) -> NDArray[np.float32]:
    """The float16 in the last axis, which goes."""
    return np.ascontiguousarray(data).view("<f2")[..., 0].astype(np.float32)


def _q4_0(data: Bytes) -> Groups:
    blocks = data.reshape(len(data), -1, 18)
    scale = _half(blocks[..., :2])
    return Groups(FOUR, scale, -8 * scale, blocks[..., 2:])


def _q4_1(data: Bytes) -> Groups:
    blocks = data.reshape(len(data), -1, 20)
    return Groups(FOUR, _half(blocks[..., :2]), _half(blocks[..., 2:4]), blocks[..., 4:])


def _q8_0(data: Bytes) -> Groups:
    blocks = data.reshape(len(data), -1, 34)
    return Groups(EIGHT, _half(blocks[..., :2]), None, blocks[..., 2:])


def _q4_k(data: Bytes) -> Groups:
    """Blocks of 256: d, dmin, eight 6-bit scales and minima in 12 bytes, then 4 x 32 bytes: low nibbles are one group, high nibbles the next."""
    rows = len(data)
    blocks = data.reshape(rows, -1, 144)
    low, middle, high = (blocks[..., start : start + 4] for start in (4, 8, 12))
    scales = np.concatenate((low & 63, (high & 15) | (low >> 6) << 4), -1)
    minima = np.concatenate((middle & 63, (high >> 4) | (middle >> 6) << 4), -1)
    pairs = blocks[..., 16:].reshape(rows, -1, 4, 32)
    codes = np.stack((pairs & 15, pairs >> 4), -2).reshape(rows, -1, 2, 16)
    return Groups(
        FOUR,
        (_half(blocks[..., :2])[..., None] * scales).reshape(rows, -1),
        (-_half(blocks[..., 2:4])[..., None] * minima).reshape(rows, -1),
        codes[:, :, 0] | codes[:, :, 1] << 4,
    )


def _q6_k(data: Bytes) -> Groups:
    """Blocks of 256: 128 bytes of low nibbles, 64 bytes of the upper two bits, sixteen int8 scales, d."""
    rows = len(data)
    blocks = data.reshape(rows, -1, 210)
    low = blocks[..., :128].reshape(rows, -1, 2, 64)
    high = blocks[..., 128:192].reshape(rows, -1, 2, 32)
    lower = np.stack((low & 15, low >> 4), -2).reshape(rows, -1, 2, 4, 32)
    upper = np.stack([(high >> shift & 3) << 4 for shift in (0, 2, 4, 6)], -2)
    codes = (lower | upper).view(np.int8) - np.int8(32)
    scale = _half(blocks[..., 208:])[..., None] * np.ascontiguousarray(blocks[..., 192:208]).view(np.int8)
    return Groups(EIGHT_SMALL, scale.reshape(rows, -1), None, codes.view(np.uint8).reshape(rows, -1, 16))


KINDS: dict[str, Callable[[Bytes], Groups]] = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q4_K": _q4_k, "Q8_0": _q8_0, "Q6_K": _q6_k}


def _panels(groups: Groups) -> Tensor:
    """The kernel's form, uint8 [panels, groups, bytes]: scales, offsets and codes of 16 rows side by side. Rows that fill up are zero."""
    layout, (rows, count) = groups.layout, groups.scale.shape
    panels = -(-rows // PANEL)
    out = torch.zeros(panels, count, layout.size * PANEL, dtype=torch.uint8)
    view = out.numpy()

    def place(values: NDArray[np.generic], start: int) -> None:
        """values [rows, groups, items] to [panels, groups, items, 16] at byte `start` of every group."""
        items, width = values.shape[2], values.itemsize
        into = view[:, :, start * PANEL : (start + items * width) * PANEL].view(values.dtype).reshape(panels, count, items, PANEL)
        whole = rows // PANEL
        into[:whole] = values[: whole * PANEL].reshape(whole, PANEL, count, items).transpose(0, 2, 3, 1)
        if whole < panels:
            into[whole, :, :, : rows % PANEL] = values[whole * PANEL :].transpose(1, 2, 0)

    place(groups.scale[..., None], 0)
    if groups.offset is None:
        place(groups.codes, layout.codes)
    else:
        place((groups.offset + 8 * groups.scale)[..., None], 4)
        place((groups.codes ^ np.uint8(0x88)).view(np.uint32), layout.codes)
    return out


class PanelLinear:
    """y = x @ weight.T + bias with `weight` [N, K] of storage kind `kind` in panels. Exact weights, float32 sums."""

    def __init__(self, library: ctypes.CDLL, kind: int, shape: tuple[int, int], panels: Tensor, bias: Tensor | None) -> None:
        self.rows, self.columns = shape
        self._kind = kind
        self._weight = panels
        self._bias = None if bias is None else bias.to(torch.float32).contiguous()
        self._pointers = self._weight.data_ptr(), None if self._bias is None else self._bias.data_ptr()
        self._product = library.pagewire_quant_linear

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self._weight.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        """float32 [T, K] to [T, N]."""
        x = x.contiguous()
        count, columns = x.shape
        if columns != self.columns or x.dtype != torch.float32:
            raise ValueError(f"x is {x.dtype} {tuple(x.shape)}, not float32 [T, {self.columns}]")
        y = x.new_empty(count, self.rows)
        threads = torch.get_num_threads()
        if self._product(self._kind, *self._pointers, x.data_ptr(), y.data_ptr(), count, self.rows, columns, MANY_ROWS, threads):
            raise MemoryError("no memory for a matrix product")
        return y


class QuantLinear(PanelLinear):
    """The product with groups of few bits. Made by `quant_linear`."""

    def __init__(self, library: ctypes.CDLL, groups: Groups, bias: Tensor | None) -> None:
        layout = groups.layout
        shape = groups.scale.shape[0], groups.scale.shape[1] * layout.values
        super().__init__(library, layout.number, shape, _panels(groups), bias)
        self._gather = library.pagewire_quant_rows

    def embed(self, ids: Tensor, rows: int) -> Tensor:
        """Rows of the weight for the int64 `ids` [T], as float32 [rows, K]; rows past the ids are zero. Raises IndexError."""
        ids = ids.contiguous()
        count = len(ids)
        out = torch.zeros(rows, self.columns) if rows > count else torch.empty(rows, self.columns)
        if self._gather(self._kind, self._pointers[0], ids.data_ptr(), out.data_ptr(), count, self.rows, self.columns):
            raise IndexError(f"a row is not within 0..{self.rows - 1}")
        return out


def quant_linear(parts: Sequence[tuple[str, Bytes]], bias: Tensor | None = None) -> QuantLinear | None:
    """The product with the matrices `parts` on top of one another, each a GGUF kind and its bytes [rows, bytes].

    None when it cannot be: kinds that differ or are not known, or no compiled kernel (see kernels.native.build).
    """
    kinds = {kind for kind, _ in parts}
    if len(kinds) != 1 or not kinds <= KINDS.keys():
        return None
    library = build.library()
    if library is None:
        return None
    data = parts[0][1] if len(parts) == 1 else np.concatenate([data for _, data in parts])
    return QuantLinear(library, KINDS[kinds.pop()](data), bias)


def dense_linear(weight: Tensor, bias: Tensor | None = None) -> PanelLinear:
    """The product with the float32 `weight` [N, K], summed in order of K. Raises ValueError where there is no compiled kernel."""
    library = build.library()
    if library is None or weight.dtype != torch.float32:
        raise ValueError(f"no product in one order with {weight.dtype}: it needs float32 and a C compiler")
    rows, columns = weight.shape
    panels = weight.new_zeros(-(-rows // PANEL), columns, PANEL)
    whole = rows // PANEL
    panels[:whole] = weight[: whole * PANEL].view(whole, PANEL, columns).transpose(1, 2)
    if whole < len(panels):
        panels[whole, :, : rows % PANEL] = weight[whole * PANEL :].T
    return PanelLinear(library, DENSE, (rows, columns), panels, bias)
