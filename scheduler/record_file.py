"""A file that a thread of its own appends to: a slow disk never makes the caller wait."""

import threading
from queue import SimpleQueue
from typing import BinaryIO

MAX_PENDING_BYTES = 64 << 20
CLOSE_SECONDS = 2.0


class RecordFile:
    """Takes over `file`. Once something went wrong, `failure` says what, and nothing more is written."""

    def __init__(self, file: BinaryIO) -> None:
        self.failure: str | None = None
        self._file = file
        self._parts: SimpleQueue[bytes] = SimpleQueue()
        self._given = 0
        self._written = 0
        self._thread = threading.Thread(target=self._run, name="recording", daemon=True)
        self._thread.start()

    def write(self, data: bytes) -> None:
        """Queue `data` (not empty). What a disk has not taken in time is not kept without limit: then the writing ends."""
        if self._given - self._written > MAX_PENDING_BYTES:
            self.failure = f"the disk has not taken {MAX_PENDING_BYTES >> 20} MiB in time"
        self._given += len(data)
        self._parts.put(data)

    def close(self) -> None:
        """Wait until everything is written, though not for ever."""
        self._parts.put(b"")
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self.failure = f"the disk has not taken the last bytes in {CLOSE_SECONDS:g} s"

    def abandon(self) -> None:
        """Like `close`, without waiting."""
        self._parts.put(b"")

    def _run(self) -> None:
        with self._file:
            while data := self._parts.get():
                if self.failure is None:
                    self._append(data)
                self._written += len(data)

    def _append(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) or 0 :]
        except OSError as error:
            self.failure = str(error)
