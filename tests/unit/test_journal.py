"""The journal's thread: nobody waits for the disk, and what could not be written is neither said to be nor forgotten."""

import asyncio
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from frontend.errors import ApiError
from frontend.responses import journal as module
from frontend.responses.journal import Journal
from frontend.responses.journal_file import JournalFile
from messages.journal import Deleted
from tests.support.journal_records import accepted, concluded, name_of


def names(path: Path) -> dict[str, bool]:
    """The responses in the file, and whether each has ended."""
    file = JournalFile(path)
    file.close()
    return {found.accepted.id: found.concluded is not None for found in file.restored}


class Disk:
    """Stands in the way of fdatasync: counts it, holds it up or lets it fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs = 0
        self.open = threading.Event()
        self.open.set()
        self.room = 1 << 40
        sync, write = os.fdatasync, os.pwrite

        def fdatasync(descriptor: int) -> None:
            assert threading.current_thread() is not threading.main_thread()
            self.syncs += 1
            assert self.open.wait(60)
            sync(descriptor)

        def pwrite(descriptor: int, data: Any, offset: int) -> int:
            if len(data) > self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(descriptor, data, offset)

        monkeypatch.setattr(os, "fdatasync", fdatasync)
        monkeypatch.setattr(os, "pwrite", pwrite)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_slow_disk_holds_up_nobody_and_one_synchronisation_serves_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(await asyncio.to_thread(JournalFile, tmp_path / "journal"))
    disk = Disk(monkeypatch)
    disk.open.clear()
    first = asyncio.create_task(journal.write(accepted(0)))
    await until(lambda: disk.syncs == 1)
    others = [asyncio.create_task(journal.write(accepted(number))) for number in range(1, 50)]
    await asyncio.sleep(0.05)  # the loop goes on, for as long as the disk takes
    assert not first.done()
    disk.open.set()
    await asyncio.gather(first, *others)
    assert disk.syncs == 2
    await asyncio.to_thread(journal.close)
    assert len(names(tmp_path / "journal")) == 50


async def test_a_full_disk_is_said_and_ends_are_owed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.02)
    journal = Journal(await asyncio.to_thread(JournalFile, tmp_path / "journal"))
    await asyncio.gather(*(journal.write(accepted(number)) for number in range(3)))
    disk = Disk(monkeypatch)
    disk.room = 0
    with pytest.raises(ApiError) as error:
        await journal.write(accepted(9))
    assert (error.value.status, error.value.code) == (503, "journal_unavailable")
    assert not await journal.put(concluded(0))
    assert not await journal.put(Deleted(id=name_of(1)))
    failures = journal.failures
    assert failures >= 3
    await until(lambda: journal.failures > failures + 2)  # it is tried again and again
    before, disk.room = journal.size, 1 << 40
    await until(lambda: journal.size > before)
    await asyncio.to_thread(journal.close)
    assert names(tmp_path / "journal") == {name_of(0): True, name_of(1): False, name_of(2): False}


async def test_what_is_too_large_for_the_disk_fails_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(await asyncio.to_thread(JournalFile, tmp_path / "journal"))
    disk = Disk(monkeypatch)
    disk.open.clear()
    first = journal.put(accepted(0))
    await until(lambda: disk.syncs == 1)
    disk.room = 20_000
    rest = [journal.put(accepted(1)), journal.put(accepted(2, "x" * 30_000)), journal.put(accepted(3))]
    disk.open.set()
    assert await asyncio.gather(first, *rest) == [True, True, False, True]
    await asyncio.to_thread(journal.close)
    assert list(names(tmp_path / "journal")) == [name_of(0), name_of(1), name_of(3)]


async def test_closing_writes_what_is_left(tmp_path: Path) -> None:
    journal = Journal(await asyncio.to_thread(JournalFile, tmp_path / "journal"))
    written = [journal.put(accepted(number)) for number in range(5)]
    await asyncio.to_thread(journal.close)
    assert len(names(tmp_path / "journal")) == 5
    assert await asyncio.gather(*written) == [True] * 5
