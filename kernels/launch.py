"""How the Triton kernels are launched.

Steps of a row or two use programmatic dependent launch on Hopper and newer: a kernel starts while the one before it still runs, may load what no
kernel of a step writes (weights), and waits before it touches anything else. Every program of every kernel here waits, so the order of a stream
holds. With more rows that is slower (bench/GPU.md): waiting programs take the room that the running ones should be spread over. There the kernels
of a layer are launched late (ALWAYS): each lets the next one start when its own wait is over.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kernels import direct

LOG2E = tl.constexpr(1.4426950408889634)
HOPPER = 90
MOST_DEPENDENT_ROWS = 2
ALWAYS = 0
"""In place of the rows of a step: dependent launch for any number, of kernels that let the next one start only when their own wait is over."""
MOST_LATE_ROWS = 256
"""Most rows of a step for which the kernels between the products are launched so too."""
NEVER = 1 << 30
"""In place of the rows of a step, for kernels that are never launched so: grids of about as many programs as there are multiprocessors."""

Instead = Callable[[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]], object]
"""Gets the kernel, the grid, the arguments and the settings of a launch."""
_INSTEAD: ContextVar[Instead | None] = ContextVar("instead", default=None)


@functools.cache
def _architecture() -> int:
    """Compute capability of the device that is compiled for, times ten; 0 in the interpreter."""
    return 0 if triton.knobs.runtime.interpret else int(triton.runtime.driver.active.get_current_target().arch)


def on_hopper(device: torch.device) -> bool:
    """Whether kernels that only Hopper GPUs can run may be launched for tensors on `device`."""
    return device.type != "cpu" and _architecture() == HOPPER


def dependent_launch(rows: int) -> bool:
    """Whether kernels of a step of `rows` rows are launched programmatically dependent on this machine."""
    return rows <= MOST_DEPENDENT_ROWS and _architecture() >= HOPPER


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


def settle_keys() -> None:
    """Work out the names that Triton's cache on disk has for our kernels, in one order, before any is compiled.

    Such a name depends on whose names were worked out before, so that processes which compile in another order would not find each other's work.
    """
    for module in sorted(name for name in sys.modules if name.startswith("kernels.")):
        for _, function in sorted(vars(sys.modules[module]).items()):
            if isinstance(function, triton.runtime.JITFunction):
                function.cache_key  # noqa: B018  # kept by the function


@contextmanager
def instead(do: Instead) -> Iterator[None]:
    """Inside, `do` is called in place of every launch of this thread."""
    token = _INSTEAD.set(do)
    try:
        yield
    finally:
        _INSTEAD.reset(token)


def launch(kernel: Any, grid: tuple[int, ...], rows: int, *arguments: Any, **settings: Any) -> None:
    """Run a kernel that has a `PDL` parameter over `grid`, in a step of `rows` rows; an empty grid runs nothing."""
    if 0 in grid:
        return
    settings["PDL"] = dependent = dependent_launch(rows)
    if dependent:
        settings["launch_pdl"] = True
    (_INSTEAD.get() or direct.run)(kernel, grid, arguments, settings)


def run(kernel: Any, grid: tuple[int, ...], *arguments: Any, **settings: Any) -> None:
    """Run a kernel over `grid`, as `settings` say."""
    (_INSTEAD.get() or direct.run)(kernel, grid, arguments, settings)


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << (size - 1).bit_length()


def cdiv(size: int, part: int) -> int:
    """How many parts of at most `part` there are in `size`; as `triton.cdiv`, which takes the host as long as half a launch."""
    return -(-size // part)
