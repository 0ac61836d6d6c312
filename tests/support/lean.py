"""A bound on the memory that something may take: going over it is an error here and not the end of the machine."""

import contextlib
import resource
from collections.abc import Iterator

import psutil

ROOM_BYTES = 4 << 30


@contextlib.contextmanager
def lean(most_kib: int = 400_000) -> Iterator[None]:
    """The process may have ROOM_BYTES more of address space meanwhile, and its peak must not rise by more than `most_kib`."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    room = psutil.Process().memory_info().vms + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (room if hard == resource.RLIM_INFINITY else min(room, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < most_kib, f"the peak has risen by {grown} KiB"
