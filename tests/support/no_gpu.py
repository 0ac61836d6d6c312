"""Triton's launches for an H200 without one: kernels are compiled, and what would start them on the device is noted instead."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.nvidia import driver as nvidia

from worker.resident.rehearsal import NoDevice

HOPPER = 9, 0
SHARED_BYTES = 227 << 10
REGISTERS = 64
THREADS = 1024


class Started:
    """Stands for the function in C that starts kernels; a callable that is no Python function, as that is."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.noting = True

    def __call__(self, *arguments: Any) -> None:
        if self.noting:
            self.calls.append(arguments)


class Noting(NoDevice):
    """A driver that loads nothing and starts nothing."""

    def __init__(self, started: Started) -> None:
        super().__init__(HOPPER)
        self.launcher_cls = nvidia.CudaLauncher
        self._loaded = 0
        self.utils = SimpleNamespace(
            launch=started,
            load_binary=self._load,
            get_device_properties=lambda device: {"max_shared_mem": SHARED_BYTES},
            build_signature_metadata=lambda signature: ",".join(signature).encode(),
            fill_tma_descriptor=_described,
            fill_tma_descriptor_tiled=_described,
        )

    def _load(self, *_: object) -> tuple[int, ...]:
        self._loaded += 1
        return self._loaded, self._loaded, REGISTERS, 0, THREADS


def _described(*what: Any) -> tuple[Any, ...]:
    """Stands for a descriptor of the copy engine."""
    return "map", *(tuple(part) if isinstance(part, (list, tuple)) else part for part in what)


def launches_noted(patch: Callable[[object, str, object], None]) -> Started:
    """Make this the driver; `patch(where, name, value)` sets what the driver's module is lacking without a GPU."""
    started = Started()
    triton.runtime.driver.set_active(Noting(started))  # type: ignore[arg-type]
    if not hasattr(nvidia, "annotate_arguments"):  # Triton 3.6 compiles a function for every signature
        patch(nvidia, "library_dirs", list)
        patch(nvidia, "compile_module_from_src", lambda **_: SimpleNamespace(launch=started))
        return started
    patch(nvidia, "PyKernelArg", lambda nested_tuple, type: (nested_tuple, type))
    for number, name in enumerate(("ARG_CONSTEXPR", "ARG_KERNEL", "ARG_TUPLE")):
        patch(nvidia, name, number)
    return started
