"""A case of the kernel benchmark: one kernel on one problem, in several variants that must all give the same result."""

import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

BUILDING = "PAGEWIRE_BENCH_PART" in os.environ
"""This process only compiles: tensors stay empty and nothing is launched."""
CACHE = 128 << 20
"""Bytes of input that one timed graph goes through at least, so that they do not come from the 60 MB L2."""
DEVICE = torch.device("cuda")
BF16 = torch.bfloat16
TOLERANCE = 1e-2


@dataclass(kw_only=True)
class Case:
    """`variants`: by label, a function of the number of the input set (0..`sets`); `outputs` are poisoned before a variant is checked and
    `error` then gives its relative error on input set 0; `reset` restores inputs that a call changes. `floor`: bytes read and written, or
    operations, of one call. `default`: the variant with the product's own settings."""

    name: str
    floor: float
    sets: int
    variants: Mapping[str, Callable[[int], Any]]
    outputs: list[Tensor] = field(default_factory=list)
    error: Callable[[], float]
    reset: Callable[[], None] = lambda: None
    operations: bool = False
    default: str = ""


def normal(*shape: int, scale: float = 1.0, dtype: torch.dtype = BF16) -> Tensor:
    """Normal values on the device."""
    x = torch.empty(shape, device=DEVICE, dtype=dtype)
    return x if BUILDING else x.normal_(0, scale)


def relative(found: Tensor, expected: Tensor) -> float:
    """Relative error in the 2-norm; NaN stays NaN."""
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def sets_for(nbytes: int, most: int = 32) -> int:
    """Input sets so that a graph goes through `CACHE` bytes at least."""
    return max(2, min(most, -(-CACHE // max(1, nbytes))))


def check(case: Case, run: Callable[[int], Any]) -> float:
    """Relative error of a variant with poisoned outputs."""
    for output in case.outputs:
        output.fill_(torch.nan)
    run(0)
    torch.cuda.synchronize()
    return case.error()


def seconds(run: Callable[[int], Any], sets: int, repeats: int = 7, inner: int = 3) -> float:
    """Median seconds of one call, from replays of a graph of one call for every input set."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run(0)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(sets):
            run(number)
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(inner):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(float(begin.elapsed_time(end)) / inner / sets * 1e-3)
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes read and written a second by a kernel that copies 2 GiB."""
    source = torch.empty(1 << 30, device=DEVICE, dtype=torch.bfloat16).normal_()
    target = torch.empty_like(source)
    return 2 * source.nbytes / seconds(lambda _: torch.neg(source, out=target), 2)  # a copy in a graph may take the slower copy engine
