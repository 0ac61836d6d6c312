"""The journal's thread: whatever the disk does, requests are served as fast as before.

What has come in since the last time is written with one append and one synchronisation of the file (group commit). When that fails (a full
disk, say), who waits for it is told; conclusions are kept and tried again until they are written.
"""

import asyncio
import contextlib
import logging
import queue
import threading
from typing import NamedTuple

from frontend.errors import ApiError
from frontend.responses.journal_file import JournalFile
from messages.journal import Concluded, Record

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
CLOSE_SECONDS = 3.0
TELL_RETRY_SECONDS = 10.0


class _Write(NamedTuple):
    record: Record
    written: "asyncio.Future[bool]"


class _Forget(NamedTuple):
    names: tuple[str, ...]


class Journal:
    """Owns `file`. To be made and used on the running loop. `failures` counts appends that failed."""

    def __init__(self, file: JournalFile) -> None:
        self.failures = 0
        self._file = file
        self._failing = False
        self._owed: dict[str, Concluded] = {}
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[_Write | _Forget | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._thread.start()

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._file.size

    @property
    def damaged(self) -> int:
        return self._file.damaged

    def put(self, record: Record) -> "asyncio.Future[bool]":
        """Whether it is on the disk, once that is known. A conclusion that is not is tried again without being asked."""
        written: asyncio.Future[bool] = self._loop.create_future()
        self._queue.put(_Write(record, written))
        return written

    async def write(self, record: Record) -> None:
        """Returns when it is on the disk. Raises ApiError 503."""
        if not await self.put(record):
            message = "The journal cannot be written now (a full disk, perhaps), so nothing durable is accepted; other requests are served."
            raise ApiError(503, "journal_unavailable", message, retry_after=TELL_RETRY_SECONDS)

    def forget(self, *names: str) -> None:
        """These responses are remembered no longer."""
        self._queue.put(_Forget(names))

    def close(self) -> None:
        """Write what is left, but do not wait for ever."""
        self._queue.put(None)
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():
            self._file.close()

    def _run(self) -> None:
        going = True
        while going:
            jobs = self._next()
            going = None not in jobs
            self._file.forget(name for job in jobs if isinstance(job, _Forget) for name in job.names)
            self._commit([job for job in jobs if isinstance(job, _Write)])

    def _next(self) -> list[_Write | _Forget | None]:
        """What has come in; nothing when it is time to try again."""
        try:
            jobs = [self._queue.get(timeout=RETRY_SECONDS if self._owed else None)]
        except queue.Empty:
            return []
        with contextlib.suppress(queue.Empty):
            while True:
                jobs.append(self._queue.get_nowait())
        return jobs

    def _commit(self, jobs: list[_Write]) -> None:
        records: list[Record] = [*self._owed.values(), *(job.record for job in jobs)]
        if not records:
            return
        whole = self._append(records)
        # One that is too large for the disk fails no other.
        done = [(job.written, whole or (not self._file.doubtful and self._append([job.record]))) for job in jobs]
        if whole:
            self._owed.clear()
        for job, (_, written) in zip(jobs, done, strict=True):
            if isinstance(job.record, Concluded) and not written:
                self._owed[job.record.id] = job.record
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(_settle, done)

    def _append(self, records: list[Record]) -> bool:
        try:
            self._file.append(records)
        except OSError as error:
            self.failures += 1
            if not self._failing:
                self._failing = True
                log.error("journal: %s: durable requests are refused until it can be written again", error.strerror or error)
            return False
        if self._failing:
            self._failing = False
            log.warning("the journal is written again")
        return True


def _settle(done: "list[tuple[asyncio.Future[bool], bool]]") -> None:
    for future, written in done:
        if not future.done():
            future.set_result(written)
