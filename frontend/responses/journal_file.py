"""The file of a journal: records one behind the other, each with its length and a checksum, synchronised to the disk with every append.

A record is MARK, the length of its payload and a CRC-32 of length and payload (little-endian u32 each), then the payload: a MessagePack-encoded
`messages.journal.Record`. What is damaged is skipped up to the next whole record, which MARK finds (no UTF-8 text holds it); what follows the last
whole record was being written when the machine stopped, and is cut off. Nothing here is asynchronous: every call may wait for the disk.
"""

import contextlib
import fcntl
import logging
import mmap
import os
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from messages.journal import TITLE, Accepted, Concluded, Deleted, Record

log = logging.getLogger(__name__)

MARK = b"\xff\xfe\xfdJ"
HEAD_BYTES = 12
MAX_RECORD_BYTES = 256 << 20
SLACK_BYTES = 4 << 20
"""A file is written anew when it is longer than twice what counts in it, and so much more."""
LOCK_SECONDS, LOOK_SECONDS = 1.0, 0.05
"""How long the lock of a file is waited for, which a launcher that looks at it may have for a moment; and how often it is tried."""


class JournalError(ValueError):
    """A file that cannot be a journal. The text says why."""


class Place(NamedTuple):
    """Where a whole record lies, its head included."""

    offset: int
    size: int


class Restored(NamedTuple):
    """A response of the file; `concluded` is None when it has not ended."""

    accepted: Accepted
    concluded: Concluded | None


def pack(record: Record) -> bytes:
    """The record as it stands in a file."""
    return framed(msgspec.msgpack.encode(record))


def framed(payload: bytes) -> bytes:
    """Behind its mark, length and checksum."""
    length = len(payload).to_bytes(4, "little")
    return MARK + length + zlib.crc32(payload, zlib.crc32(length)).to_bytes(4, "little") + payload


def whole_records(data: bytes | mmap.mmap) -> Iterator[Place]:
    """The records in `data` whose checksums are right, in order."""
    at = data.find(MARK)
    while at >= 0:
        end = at + HEAD_BYTES + int.from_bytes(data[at + 4 : at + 8], "little")
        if end - at <= MAX_RECORD_BYTES and end <= len(data) and _is_whole(data, at, end):
            yield Place(at, end - at)
            at = data.find(MARK, end)
        else:
            at = data.find(MARK, at + 1)


def _is_whole(data: bytes | mmap.mmap, at: int, end: int) -> bool:
    with memoryview(data) as view, view[at + 4 : at + 8] as length, view[at + HEAD_BYTES : end] as payload:
        return zlib.crc32(payload, zlib.crc32(length)) == int.from_bytes(view[at + 8 : at + HEAD_BYTES], "little")


class JournalFile:
    """An open journal, which nobody else has: the launcher has the lock of its name, and this the one of the file, which may have several names.

    `doubtful`: the disk has not confirmed what was written, and the next append writes the file anew. `damaged` counts what had to be skipped at the
    opening: stretches without a whole record before the last one, and records that are none of ours.
    """

    def __init__(self, path: str | Path) -> None:
        """Make the file, for its owner only, or open the one that is there. Raises OSError and JournalError."""
        self._path = Path(path)
        self._new = self._path.with_name(self._path.name + ".new")
        self._new.unlink(missing_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._places: dict[str, list[Place]] = {}
        self.doubtful = False
        self.damaged = 0
        try:
            _lock(self._file, self._path)
            self.restored = self._read()
        except BaseException:
            os.close(self._file)
            raise

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._end

    @property
    def live(self) -> int:
        """Bytes of the records that count."""
        return sum(place.size for places in self._places.values() for place in places)

    def _read(self) -> list[Restored]:
        title = os.pread(self._file, len(TITLE), 0)
        if title != TITLE:
            if not TITLE.startswith(title):
                raise JournalError(f"{self._path} is not a journal of this program")
            os.pwrite(self._file, TITLE, 0)
            self._synchronise()
            _synchronise_folder(self._path)
        with mmap.mmap(self._file, 0, access=mmap.ACCESS_READ) as data:
            found = self._take_in(data)
        os.ftruncate(self._file, self._end)
        return found

    def _take_in(self, data: mmap.mmap) -> list[Restored]:
        decode = msgspec.msgpack.Decoder(Record).decode
        found: dict[str, Restored] = {}
        self._end = len(TITLE)
        for place in whole_records(data):
            self.damaged += place.offset != self._end
            self._end = place.offset + place.size
            try:
                record: Record = decode(data[place.offset + HEAD_BYTES : self._end])
            except (msgspec.DecodeError, ValueError, RecursionError):
                self.damaged += 1
                continue
            self._note(record, place)
            if isinstance(record, Accepted):
                found[record.id] = Restored(record, None)
            elif isinstance(record, Deleted):
                found.pop(record.id, None)
            elif record.id in found:
                found[record.id] = Restored(found[record.id].accepted, record)
        return list(found.values())

    def _note(self, record: Record, place: Place) -> None:
        if isinstance(record, Accepted):
            self._places[record.id] = [place]
        elif isinstance(record, Deleted):
            self._places.pop(record.id, None)
        elif record.id in self._places:
            self._places[record.id][1:] = [place]

    def append(self, records: Sequence[Record]) -> None:
        """All of them, on the disk when this returns, or (OSError) none. A file with much that no longer counts is written anew."""
        if self.doubtful:
            self._write_anew()
        packed = [pack(record) for record in records]
        try:
            _write(self._file, b"".join(packed), self._end)
        except OSError:
            self.doubtful = True  # until nothing of it is left: shorter records over it would leave whole ones behind them
            os.ftruncate(self._file, self._end)
            self.doubtful = False
            raise
        try:
            self._synchronise()
        except OSError:
            self.doubtful = True
            raise
        for record, data in zip(records, packed, strict=True):
            self._note(record, Place(self._end, len(data)))
            self._end += len(data)
        if self._end > 2 * self.live + SLACK_BYTES:
            with contextlib.suppress(OSError):  # it is as good as it was, and is tried again with the next append
                self._write_anew()

    def forget(self, names: Iterable[str]) -> None:
        """These responses no longer count: they are left out when the file is written anew."""
        for name in names:
            self._places.pop(name, None)

    def _synchronise(self) -> None:
        os.fdatasync(self._file)

    def _write_anew(self) -> None:
        """What counts alone goes into a new file, which takes the place of the old one when it is whole. Raises OSError: then nothing has changed."""
        new = os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
            places, end = self._copy(new)
            os.fsync(new)
            self._new.replace(self._path)
        except OSError:
            os.close(new)
            self._new.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._file, self._places, self._end = new, places, end
        self.doubtful = True  # until it is sure that the name is that of the new file
        _synchronise_folder(self._path)
        self.doubtful = False

    def _copy(self, new: int) -> tuple[dict[str, list[Place]], int]:
        """A record that has become unreadable meanwhile is left out, with all of its response."""
        end = _write(new, TITLE, 0)
        copied: dict[str, list[Place]] = {}
        for name, places in self._places.items():
            records = [os.pread(self._file, place.size, place.offset) for place in places]
            if not all(len(data) > HEAD_BYTES and _is_whole(data, 0, len(data)) for data in records):
                log.error("journal: %s cannot be read back and is left out", name)
                continue
            copied[name] = []
            for data in records:
                copied[name].append(Place(end, len(data)))
                end += _write(new, data, end)
        return copied, end

    def close(self) -> None:
        os.close(self._file)


def _lock(file: int, path: Path) -> None:
    """Held for as long as the file is open. Raises OSError, and JournalError when another process has it."""
    limit = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                raise JournalError(f"{path} is used by a running cluster, perhaps under another name") from None
            time.sleep(LOOK_SECONDS)


def _write(file: int, data: bytes, offset: int) -> int:
    """All of `data`; its length. Raises OSError."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, offset)
        rest, offset = rest[written:], offset + written
    return len(data)


def _synchronise_folder(path: Path) -> None:
    """The name of the file is on the disk too."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
