"""How the Triton kernels are launched.

On Hopper and newer they use programmatic dependent launch: a kernel starts while the one before it still runs, may load what no kernel of
a step writes (weights), and waits before it touches anything else. Every program of every kernel here waits, so the order of a stream holds.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOG2E = tl.constexpr(1.4426950408889634)


@functools.cache
def dependent_launch() -> bool:
    """Whether kernels are launched programmatically dependent on this machine."""
    return not triton.knobs.runtime.interpret and torch.cuda.get_device_capability()[0] >= 9


@triton.jit
def trigger(PDL: tl.constexpr) -> None:
    """Let the next kernel start; it waits by itself for this one's results."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait(PDL: tl.constexpr) -> None:
    """Wait for the results of all kernels before this one."""
    if PDL:
        gdc_wait()


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
    """Run a kernel that has a `PDL` parameter over `grid`; an empty grid runs nothing."""
    if 0 in grid:
        return
    if dependent_launch():
        settings["launch_pdl"] = True
    kernel[grid](*arguments, PDL=dependent_launch(), **settings)


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()
