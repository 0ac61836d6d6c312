"""Compiles Triton kernels on threads of its own, so that many are compiled at once and in the order in which they will be needed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import triton

from kernels.launch import COMPILE_ONLY


class Compiler:
    """From now until `close`, kernels that the calling thread comes across are compiled on `threads` others; a launch waits for its own kernel."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "compile")
        self._mode = triton.AsyncCompileMode(self._pool, ignore_errors=True)  # in `close`; a launch raises what its kernel's compilation did
        self._mode.__enter__()

    @contextmanager
    def only(self) -> Iterator[None]:
        """What is launched inside is only compiled: results are undefined, and nothing waits."""
        token = COMPILE_ONLY.set(True)
        try:
            yield
        finally:
            COMPILE_ONLY.reset(token)

    def wait(self) -> None:
        """Until all is compiled. Raises what a compilation did."""
        for future in self._mode.raw_futures:
            future.result()

    def close(self) -> None:
        """Leave out what has not been begun, and wait for what has."""
        self._pool.shutdown(cancel_futures=True)
        self._mode.__exit__(None, None, None)
