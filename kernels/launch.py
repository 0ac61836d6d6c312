"""How the Triton kernels are launched.

Steps of a row or two use programmatic dependent launch on Hopper and newer: a kernel starts while the one before it still runs, may load what no
kernel of a step writes (weights), and waits before it touches anything else. Every program of every kernel here waits, so the order of a stream
holds. With more rows that is slower (bench/GPU.md): waiting programs take the room that the running ones should be spread over.
"""

import functools
from contextvars import ContextVar
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOG2E = tl.constexpr(1.4426950408889634)
MOST_DEPENDENT_ROWS = 2
NEVER = 1 << 30
"""In place of the rows of a step, for kernels that are never launched so: grids of about as many programs as there are multiprocessors."""

COMPILE_ONLY: ContextVar[bool] = ContextVar("compile_only", default=False)


@functools.cache
def _can_depend() -> bool:
    return not triton.knobs.runtime.interpret and torch.cuda.get_device_capability()[0] >= 9


def dependent_launch(rows: int) -> bool:
    """Whether kernels of a step of `rows` rows are launched programmatically dependent on this machine."""
    return rows <= MOST_DEPENDENT_ROWS and _can_depend()


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


def launch(kernel: Any, grid: tuple[int, ...], rows: int, *arguments: Any, **settings: Any) -> None:
    """Run a kernel that has a `PDL` parameter over `grid`, in a step of `rows` rows; an empty grid runs nothing. Or compile it (kernels.compiler)."""
    _launch(kernel, grid, rows, COMPILE_ONLY.get(), arguments, settings)


def run(kernel: Any, grid: tuple[int, ...], rows: int, *arguments: Any, **settings: Any) -> None:
    """`launch` a kernel that is run where others are only compiled, because it writes what torch then takes for indices."""
    _launch(kernel, grid, rows, False, arguments, settings)


def _launch(kernel: Any, grid: tuple[int, ...], rows: int, only_compiled: bool, arguments: tuple[Any, ...], settings: dict[str, Any]) -> None:
    if 0 in grid:
        return
    dependent = dependent_launch(rows)
    if dependent:
        settings["launch_pdl"] = True
    if only_compiled:
        kernel.warmup(*arguments, grid=grid, PDL=dependent, **settings)
    else:
        kernel[grid](*arguments, PDL=dependent, **settings)


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()
