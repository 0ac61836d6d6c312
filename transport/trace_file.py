"""The file that all processes of a cluster append their events to. It is valid JSON as soon as `finish` has closed it, and readable before."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

import msgspec

from messages.trace import BEGINS, ENDS, Event
from transport.private_file import create_private

LIMIT_BYTES = 256 << 20
"""The longest a trace may get: browsers show no more."""


class TraceEnded(Exception):
    """Nothing more can be written. The text says why."""


def begin(path: str) -> None:
    """Make the file, for its owner only. Raises OSError, also when there is one already."""
    with create_private(path) as file:
        file.write(b"[\n" + msgspec.json.encode(_mark(BEGINS, unix_seconds=time.time())) + b",\n")


def finish(path: str) -> None:
    """Close the array, when all processes have ended. Raises OSError."""
    with contextlib.closing(TraceFile(path)) as file:
        file.append_whole(msgspec.json.encode(_mark(ENDS)) + b"\n]\n")


def _mark(name: str, **values: float) -> Event:
    return Event(name=name, ph="i", s="g", pid=os.getpid(), tid=os.getpid(), ts=time.monotonic() * 1e6, args=dict(values))


class TraceFile:
    """Appends whole lines to a file that `begin` has made. Raises OSError when there is none."""

    def __init__(self, path: str, limit: int = LIMIT_BYTES) -> None:
        self._limit = limit
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def append(self, lines: bytes) -> None:
        """Raises TraceEnded, once and for all, and has then written nothing."""
        try:
            if os.fstat(self._file).st_size + len(lines) > self._limit:
                raise TraceEnded(f"it has grown to {self._limit / (1 << 20):g} MiB")
            self.append_whole(lines)
        except OSError as error:
            raise TraceEnded(error.strerror or str(error)) from error

    def append_whole(self, lines: bytes) -> None:
        """All or nothing. Raises OSError."""
        with self._locked():
            size = os.fstat(self._file).st_size
            written = os.write(self._file, lines)
            try:
                while written < len(lines):
                    written += os.write(self._file, lines[written:])
            except OSError:
                os.ftruncate(self._file, size)
                raise

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among the processes, so that what a full disk has cut off can be taken back."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._file)
