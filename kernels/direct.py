"""Launches that go around Triton's binder, which takes the host several times as long as the launch itself.

The first launch of every kind goes through Triton, which compiles and loads what it needs; what it then calls is remembered by a key that
tells apart all that Triton compiles differently for. Settings of the environment that Triton reads at every launch count at the first one only.
This is written against the inside of the Triton versions in `STYLES`; with others, and in the interpreter, there are no such launches.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import triton
from torch import Tensor
from triton import knobs
from triton.backends.nvidia import driver as nvidia
from triton.compiler import CompiledKernel
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.runtime.jit import JITFunction, mangle_type

Arguments = tuple[Any, ...]

FLAT, PACKED = "flat", "packed"
STYLES = {"3.6.0": FLAT, "3.7.1": PACKED}
"""How the launcher in C wants a kernel's arguments: one by one, or as one tuple after all else."""
CALLS = {
    FLAT: ["self", "gridX", "gridY", "gridZ", "stream", "function", "args"],
    PACKED: [
        "self", "gridX", "gridY", "gridZ", "stream", "function", "kernel_metadata", "launch_metadata", "launch_enter_hook", "launch_exit_hook", "args"
    ],
}  # fmt: skip
ALIGNMENT = 16
UNALIGNED = "unaligned"
ONE, EVEN, ODD = "one", "even", "odd"
"""Integers that Triton tells apart: 1, multiples of `ALIGNMENT`, others."""
INT32, INT64 = 1 << 31, 1 << 63
KIND, MAPS = "_direct_kind", "_direct_maps"
"""What is kept with a tensor descriptor, which is made once for many launches: Triton's name for its type, and what it is for the copy engine."""


def style() -> str | None:
    """That of this version of Triton; None when it does not look as those do that this is written for."""
    found = STYLES.get(triton.__version__)
    if found is None or list(inspect.signature(nvidia.CudaLauncher.__call__).parameters) != CALLS[found]:
        return None
    hooks = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    return found if all(isinstance(getattr(hook, "calls", None), list) for hook in hooks) else None


STYLE = style()
_ENTERING, _LEAVING = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook


def describe(arguments: Arguments) -> tuple[tuple[Any, ...], list[Any]] | None:
    """What Triton's choice of a kernel can depend on, at least as fine as it is for any parameters, and the arguments with addresses for tensors.

    None when there is an argument of another type than the kernels here take.
    """
    code, values = [], []
    for value in arguments:
        kind = type(value)
        if kind is Tensor:
            address = value.data_ptr()
            code.append(value.dtype)
            if address % ALIGNMENT:
                code.append(UNALIGNED)
            values.append(address)
            continue
        if kind is int:
            code.append(ONE if value == 1 else ODD if value % ALIGNMENT else EVEN)
            if not -INT32 <= value < INT32:
                code.append("i64" if value < INT64 else "u64")
        elif kind is float or kind is bool or value is None:
            code.append(kind)
        elif kind is TensorDescriptor:
            code.append(value.__dict__.get(KIND) or _kind(value))
        else:
            return None
        values.append(value)
    return tuple(code), values


def settings_key(settings: dict[str, Any]) -> tuple[Arguments, ...]:
    """Constants and options by name. Their types are part of it: 1, 1.0 and True are the same for a dictionary."""
    values = settings.values()
    return tuple(settings), tuple(values), tuple(map(type, values))


def _kind(descriptor: TensorDescriptor) -> str:
    found: str = mangle_type(descriptor, True)
    setattr(descriptor, KIND, found)
    return found


class Map(NamedTuple):
    """Where a kernel takes a tensor descriptor, and how the copy engine is told of it; `name` stands for that."""

    place: int
    meta: dict[str, Any]
    name: str

    def of(self, descriptor: TensorDescriptor) -> Arguments:
        """What a kernel gets for a tensor descriptor, made once: valid for as long as the descriptor itself."""
        known: dict[str, Arguments] = descriptor.__dict__.setdefault(MAPS, {})
        if (found := known.get(self.name)) is None:
            found = known[self.name] = tuple(nvidia.make_tensordesc_arg(descriptor, self.meta))
        return found


class Call(NamedTuple):
    """How one compiled kernel is launched: what comes before its arguments and after them, and the tensor descriptors among them, last first."""

    launch: Callable[..., object]
    before: Arguments
    after: Arguments
    maps: list[Map]

    def __call__(self, grid: tuple[int, ...], stream: int, values: list[Any]) -> None:
        size = len(grid)
        for each in self.maps:
            values[each.place : each.place + 1] = each.of(values[each.place])
        sizes = grid[0], grid[1] if size > 1 else 1, grid[2] if size > 2 else 1
        if STYLE == FLAT:
            self.launch(*sizes, stream, *self.before, *values, *self.after)
        else:
            self.launch(*sizes, stream, *self.before, (*values, *self.after))


def call_of(compiled: object, values: list[Any], constants: int) -> Call | None:
    """How to launch what Triton has just launched with `values` and `constants` more arguments that are compiled in; None when it is out of line."""
    if not isinstance(compiled, CompiledKernel) or type(compiled.run) is not nvidia.CudaLauncher:
        return None
    launcher = compiled.run
    launch, metas = launcher.launch, []
    if inspect.isfunction(launch):  # it makes arguments of tensor descriptors
        closure = inspect.getclosurevars(launch).nonlocals
        launch, metas = closure["launcher"], closure["tensordesc_meta"]
    places = [index for index, value in enumerate(values) if type(value) is TensorDescriptor]
    if launcher.global_scratch_size or launcher.profile_scratch_size or len(places) != len(metas) or None in metas:
        return None
    maps = [Map(place, meta, str(meta)) for place, meta in zip(places, metas, strict=True)]
    options = compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl
    before: Arguments
    if STYLE == FLAT:
        before = *options, None, None, compiled.packed_metadata, None, None, None
    else:
        before = *options, compiled.packed_metadata, None, None, None, None, None, launcher.arg_annotations, launcher.kernel_signature
    return Call(launch, before, (None,) * constants, maps[::-1])


class Kernel:
    """A Triton kernel and the calls known of it. Its constants are its last parameters, and given by name, as every setting is."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        constant = [parameter.is_constexpr for parameter in kernel.params] if isinstance(kernel, JITFunction) else []
        self.variables = constant.index(True) if True in constant else len(constant)
        self.usable = STYLE is not None and bool(constant) and all(constant[self.variables :]) and not kernel.pre_run_hooks
        self._names = {parameter.name for parameter in kernel.params[: self.variables]} if self.usable else set()
        self._constants = len(constant) - self.variables
        self._calls: dict[Arguments, Call | None] = {}

    def run(self, grid: tuple[int, ...], arguments: Arguments, settings: dict[str, Any]) -> None:
        """As `kernel[grid](*arguments, **settings)`."""
        if not self.usable or len(arguments) != self.variables or _ENTERING.calls or _LEAVING.calls or (described := describe(arguments)) is None:
            self.kernel[grid](*arguments, **settings)
            return
        code, values = described
        active: Any = triton.runtime.driver.active
        key = active.get_current_device(), code, *settings_key(settings)
        call = self._calls.get(key)
        if call is not None:
            call(grid, active.get_current_stream(key[0]), values)
            return
        compiled = self.kernel[grid](*arguments, **settings)
        if key not in self._calls:
            self._calls[key] = call_of(compiled, values, self._constants) if self._names.isdisjoint(settings) else None


_KERNELS: dict[int, Kernel] = {}


def run(kernel: Any, grid: tuple[int, ...], arguments: Arguments, settings: dict[str, Any]) -> None:
    """As `kernel[grid](*arguments, **settings)`, by the shortest way there is."""
    known = _KERNELS.get(id(kernel))
    if known is None:
        known = _KERNELS[id(kernel)] = Kernel(kernel)
    known.run(grid, arguments, settings)
