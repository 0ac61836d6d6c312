"""CUDA graphs of decode steps and of steps with short prompts: one launch for a whole step, for each size that steps are filled up to."""

import logging
import warnings
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

log = logging.getLogger(__name__)

SMALL = (1, 2, 4)
STRIDE = 8


class Key(NamedTuple):
    """Whatever the launches of a step depend on: its decode `rows`, how they are sampled, and the `tokens` of prompts beside them."""

    rows: int
    mode: str
    tokens: int = 0


def padded_sizes(most: int) -> list[int]:
    """1, 2, 4, 8, 16, 24, ... and `most`."""
    return [*(size for size in SMALL if size < most), *range(STRIDE, most, STRIDE), most]


class Graphs:
    """Runs steps by `key`: the first time eagerly, which compiles its kernels, then from a graph. On a CPU always eagerly."""

    def __init__(self, device: torch.device, most_rows: int) -> None:
        self._sizes = padded_sizes(most_rows)
        self._graphs: dict[Key, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._seen: set[Key] = set()
        self._refused: set[Key] = set()
        self._usable = device.type == "cuda"
        self._ahead = self._usable
        self._pool = torch.cuda.graph_pool_handle() if self._usable else None

    @property
    def captured(self) -> int:
        """Graphs there are."""
        return len(self._graphs)

    @property
    def usable(self) -> bool:
        """Whether this device has graphs."""
        return self._usable

    def padded(self, rows: int) -> int:
        """The number of rows that a step of `rows` is computed with."""
        return self._sizes[bisect_left(self._sizes, rows)]

    @property
    def sizes(self) -> list[int]:
        """Numbers of rows that graphs are made ahead for; none where there are no graphs or too little memory."""
        return self._sizes if self._ahead else []

    def lacks(self, key: Key) -> bool:
        """Such steps have no graph yet."""
        return key not in self._graphs and key not in self._refused

    def run(self, key: Key, step: Callable[[], Tensor]) -> Tensor:
        """What `step` gives, computed by it or by its graph; valid until the next step."""
        found = self._graphs.get(key)
        if found is None and key in self._seen and self._usable and key not in self._refused:
            found = self._capture(key, step)
        if found is None:
            self._seen.add(key)
            return step()
        graph, out = found
        graph.replay()
        return out

    def clear(self) -> None:
        """Wait for the device and give back all graphs and unused memory. From now on a graph is made only when its kind of step comes twice."""
        self._ahead = False
        if self._usable:
            torch.cuda.synchronize()
        self._graphs.clear()
        self._seen.clear()
        if self._usable:
            self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.empty_cache()

    def refuse(self, key: Key, why: str) -> None:
        """Do without a graph for these steps from now on."""
        log.warning("no graph of a step of %d rows and %d prompt tokens, which stays eager: %s", key.rows, key.tokens, why)
        self._refused.add(key)

    def _capture(self, key: Key, step: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor] | None:
        """Record a step without running it. None when that fails, for want of memory or otherwise: such steps stay eager."""
        graph = torch.cuda.CUDAGraph()
        try:
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                out = step()
            finally:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # of a step without memory for its first tensor
                    graph.capture_end()
        except RuntimeError as error:
            self.refuse(key, str(error).splitlines()[0])
            return None
        self._graphs[key] = graph, out
        return graph, out
