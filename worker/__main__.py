"""`python -m worker`, started by launch.py."""

import ctypes
import logging
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from checkpoint.errors import CheckpointError
from messages.cluster import DEAD, LOADING
from transport.lifetime import Lifetime, read_arguments, set_up_logging
from transport.reports import Reporter
from worker.args import WorkerArgs
from worker.compilers import Compilers, compiled
from worker.pulse import Pulse

log = logging.getLogger(__name__)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 32 << 20
"""The most glibc takes for M_MMAP_THRESHOLD on 64 bits."""


def _keep_freed_memory() -> None:
    """Let malloc keep what a step frees for the next one: fresh pages for every temporary tensor cost more than the small operations on them."""
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "mallopt"):  # not in musl
        libc.mallopt(M_MMAP_THRESHOLD, KEPT_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, 8 * KEPT_BYTES)


def main() -> int:
    """Load, serve, end. 0 after SIGTERM or Shutdown, 1 when the model cannot be loaded."""
    args = read_arguments(WorkerArgs)
    set_up_logging(args)
    lifetime = Lifetime(args)
    threads = args.threads or len(os.sched_getaffinity(0))
    os.environ["OMP_NUM_THREADS"] = str(threads)  # before torch starts its thread pool
    _keep_freed_memory()
    return _run(args, lifetime, threads)


def _run(args: WorkerArgs, lifetime: Lifetime, threads: int) -> int:
    pulse = Pulse()
    reporter = Reporter(args, pulse.alive)
    reporter.phase(LOADING, "importing torch")
    try:
        return _serve(args, lifetime, threads, reporter, pulse)
    finally:
        reporter.close()


def _serve(args: WorkerArgs, lifetime: Lifetime, threads: int, reporter: Reporter, pulse: Pulse) -> int:
    needed = args.device.startswith("cuda") and not compiled(args).exists()
    compilers = Compilers(args) if needed else None  # first of all, so that they import while this process does
    try:
        return _load_and_serve(args, lifetime, threads, reporter, pulse, compilers)
    finally:
        if compilers is not None:
            compilers.close()


def _load_and_serve(args: WorkerArgs, lifetime: Lifetime, threads: int, reporter: Reporter, pulse: Pulse, compilers: Compilers | None) -> int:
    import torch

    from worker.engine import DeviceError
    from worker.load import LoadStopped, load_engine
    from worker.memory import PoolError
    from worker.service import Service

    torch.set_num_threads(threads)
    try:
        engine = load_engine(args, reporter, lifetime.stopping.is_set, compilers)
    except LoadStopped:
        return 0
    except (CheckpointError, PoolError, ValueError, OSError) as error:
        log.error("%s", error)
        reporter.phase(DEAD, str(error))
        return 1
    except torch.AcceleratorError as error:
        _die(f"the device failed while the model was loaded: {str(error).splitlines()[0]}", reporter)
    service = Service(args, engine, reporter, lifetime, pulse)
    try:
        service.run()
    except DeviceError as error:
        _die(f"the device failed, the process ends and its sequences run again: {str(error).splitlines()[0]}", reporter, service.end_trace)
    return 0


def _die(message: str, reporter: Reporter, last: Callable[[], None] | None = None) -> NoReturn:
    """Say why, do the `last` thing, and end at once: taking down a device in an error state in order can hang."""
    log.critical("%s", message)
    reporter.phase(DEAD, message)
    reporter.close()
    if last is not None:
        last()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
