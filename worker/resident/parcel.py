"""What travels with one step between host and device: pinned memory both ways and the events that say when it may be read or used again."""

import queue
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from transport.columns import I32

ALIGNMENT = 32
SPARE = 1.25


class Event(Protocol):
    """A point of the device's stream."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...


class _Past:
    """Stands for events of a device that has no stream."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...


class Parcel:
    """`begun` and `done` bracket the step on the device. `up` is copied there as one piece; `down` [max rows] receives the tokens.

    `sending`: between which times of `time.monotonic()` the host sent `up`.

    Pinned memory is only given back by the thread that launches: torch notes an event on the stream then, which must not be part of a capture.
    """

    def __init__(self, device: torch.device, rows: int, words: int) -> None:
        self._pinned = device.type == "cuda"
        self._device = device
        self.up = self._host(words)
        self.down = self._host(rows)
        self._late = self._host(0)
        self._more: dict[str, Tensor] = {}
        self.sending = (0.0, 0.0)
        self.begun: Event = torch.cuda.Event(enable_timing=True) if self._pinned else _Past()
        self.done: Event = torch.cuda.Event(enable_timing=True) if self._pinned else _Past()

    def _host(self, words: int) -> Tensor:
        return torch.empty(words, dtype=torch.int32, pin_memory=self._pinned)

    def upload(self, parts: list[I32]) -> list[Tensor]:
        """int32 arrays as device tensors of the same shape, by a single copy that the host does not wait for."""
        ends = np.cumsum([-(-part.size // ALIGNMENT) * ALIGNMENT for part in parts]).tolist()
        if ends[-1] > len(self.up):
            self.up = self._host(int(ends[-1] * SPARE))
        host = self.up.numpy()
        begins = [0, *ends[:-1]]
        for begin, part in zip(begins, parts, strict=True):
            host[begin : begin + part.size] = part.reshape(-1)
        there = self.up[: ends[-1]].to(self._device, non_blocking=True)
        return [there[begin : begin + part.size].view(part.shape) for begin, part in zip(begins, parts, strict=True)]

    def upload_late(self, parts: list[I32]) -> list[Tensor]:
        """As `upload`, once more in the same step, whose first piece may still be on its way."""
        self.up, self._late = self._late, self.up
        there = self.upload(parts)
        self.up, self._late = self._late, self.up
        return there

    def download(self, token: Tensor, count: int) -> None:
        """Ask for the first `count` tokens; they are in `down` once `done` has passed."""
        self.down[:count].copy_(token if token.shape[0] == count else token[:count], non_blocking=True)

    def fetch(self, what: str, parts: list[Tensor]) -> list[Tensor]:
        """The same tensors on the host, of 4 or 8 bytes a number; filled once `done` has passed, and valid until the parcel is used again.

        Their memory is kept here, by the name of what they are (one call a step for each): the thread that reads results must free no pinned
        memory, for torch then records an event on a stream that a graph may just be captured on.
        """
        sizes = [-(-part.nbytes // (4 * ALIGNMENT)) * ALIGNMENT for part in parts]
        if sum(sizes) > len(self._more.get(what, ())):
            self._more[what] = self._host(int(sum(sizes) * SPARE))
        found = [
            there[: part.nbytes // 4].view(part.dtype).view(part.shape)
            for part, there in zip(parts, self._more[what][: sum(sizes)].split(sizes), strict=True)
        ]
        for part, there in zip(parts, found, strict=True):
            there.copy_(part, non_blocking=True)
        return found


class Parcels:
    """Parcels that are free, made as they are needed."""

    def __init__(self, device: torch.device, rows: int, words: int) -> None:
        self._size = device, rows, words
        self._free: queue.SimpleQueue[Parcel] = queue.SimpleQueue()

    def take(self) -> Parcel:
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return Parcel(*self._size)

    def give(self, parcel: Parcel) -> None:
        """The step has ended on the device and its tokens were read."""
        self._free.put(parcel)
