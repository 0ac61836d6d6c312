"""`python -m worker.resident.rehearsal N`, started by a worker on a GPU: compiles the kernels of its steps on N processes, those needed first first.

It plays the steps of a model of two layers of each kind whose tensors have no memory (torch's meta device) and notes the launches.
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from checkpoint.errors import CheckpointError
from kernels.launch import instead, settle_keys
from transport.lifetime import PR_SET_PDEATHSIG, read_arguments, set_up_logging
from worker.args import WorkerArgs
from worker.compilers import BEGUN, compiled
from worker.load import load_shape
from worker.resident.load import trial_engine

log = logging.getLogger(__name__)
META = torch.device("meta")
NICE = 10
WARP, ALIGNMENT = 32, 16


class NoDevice:
    """A driver of Triton for kernels that are compiled and not run."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self._target = GPUTarget("cuda", 10 * capability[0] + capability[1], WARP)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._target


Compilation = tuple[str, Callable[[], object]]
"""A kernel's name and what compiles it."""


class Launches:
    """Kinds of launches in the order in which they first came."""

    def __init__(self) -> None:
        self.kinds: dict[Any, Compilation] = {}

    def note(self, kernel: Any, grid: tuple[int, ...], arguments: tuple[Any, ...], settings: dict[str, Any]) -> None:
        """Stands for a launch."""
        given = [Address(value) if isinstance(value, Tensor) else value for value in arguments]
        named = {name: Address(value) if isinstance(value, Tensor) else value for name, value in settings.items()}
        kinds = tuple(_kind(value, parameter) for value, parameter in zip(given, kernel.params, strict=False))
        key = kernel.fn, kinds, tuple((name, type(value), str(value)) for name, value in named.items())
        self.kinds.setdefault(key, (kernel.fn.__name__, lambda: kernel.warmup(*given, grid=grid, **named)))


class Address:
    """What Triton's compiler wants to know of a tensor: its type, and how it is aligned when its storage is."""

    def __init__(self, tensor: Tensor) -> None:
        self.dtype = tensor.dtype
        self._offset = int(tensor.storage_offset()) * tensor.itemsize

    def data_ptr(self) -> int:
        return self._offset

    def ptr_range(self) -> int:
        return 0


def _kind(value: Any, parameter: Any) -> Any:
    """What Triton compiles differently for."""
    if isinstance(value, Address):
        return value.dtype, parameter.do_not_specialize_on_alignment or value.data_ptr() % ALIGNMENT == 0
    if isinstance(value, TensorDescriptor):
        return value.base.dtype, tuple(value.block_shape), str(value.layout)
    if isinstance(value, int) and not parameter.is_constexpr:
        return parameter.do_not_specialize or (value == 1, value % ALIGNMENT == 0)
    return type(value), None if isinstance(value, float) else str(value)


def rehearsed(args: WorkerArgs) -> tuple[list[Compilation], int]:
    """What compiles the kernels of all usual steps, in the order of need, and how many of them a first prompt and a first token take."""
    found = load_shape(args, META)
    engine = trial_engine(found.decoder, found.kernels, args, found.kv_dtype, META, found.positions, args.max_step_tokens)
    launches = Launches()
    settle_keys()
    with instead(launches.note):
        engine.begin()
        first = len(launches.kinds)
        engine.rehearse()
    return list(launches.kinds.values()), first


def capability(device: str) -> tuple[int, int]:
    """Compute capability of the GPU, as a process finds that is then gone: this one has no threads of CUDA, and so may be forked."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, bytes(torch.cuda.get_device_capability(device)))
        os._exit(0)
    os.close(writing)
    found = os.read(reading, 2)
    os.close(reading)
    os.waitpid(child, 0)
    major, minor = found
    return major, minor


def main() -> int:
    """Compile. The worker compiles what it does not find, and says what is wrong with the model or the device: this does not."""
    args, count = read_arguments(WorkerArgs), int(sys.argv[1])
    set_up_logging(args)
    _die_with_parent()
    if (torch.device(args.device).index or 0) >= torch.cuda.device_count():
        return 1
    triton.runtime.driver.set_active(NoDevice(capability(args.device)))  # type: ignore[arg-type]
    try:
        with torch.inference_mode():
            launches, first = rehearsed(args)
    except (CheckpointError, ValueError, OSError):
        return 1
    number = next((number for number in range(1, count) if os.fork() == 0), 0)
    _die_with_parent()
    mine = range(number, len(launches), count)
    for part in ([index for index in mine if index < first], [index for index in mine if index >= first]):
        for index in part:
            launches[index][1]()
        os.write(sys.stdout.fileno(), BEGUN)
        os.nice(NICE)
    if number:
        os._exit(0)  # a fork has copies of everything that an orderly end would look after
    if all(os.wait()[1] == 0 for _ in range(1, count)):
        with contextlib.suppress(FileNotFoundError):  # the cluster has ended meanwhile
            compiled(args).touch(mode=0o600)
    return 0


def _die_with_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
