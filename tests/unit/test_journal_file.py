"""The journal's file: whatever was cut off or damaged, every whole record counts and nothing else does."""

import errno
import os
import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.responses import journal_file
from frontend.responses.journal_file import JournalError, JournalFile, framed, pack, whole_records
from messages.journal import TITLE, Accepted, Concluded, Deleted, Record
from tests.support.journal_records import accepted, concluded, name_of, plain

Known = dict[str, tuple[bytes, bytes | None]]


def known(file: JournalFile) -> Known:
    """What the file had when it was opened."""
    return {found.accepted.id: (plain(found.accepted), None if found.concluded is None else plain(found.concluded)) for found in file.restored}


def opened(path: Path) -> tuple[Known, int]:
    """What is known when the file is opened now, and how much of it is damaged."""
    file = JournalFile(path)
    file.close()
    return known(file), file.damaged


def expected(records: list[Record]) -> Known:
    """The same, by the records alone."""
    found: Known = {}
    for record in records:
        if isinstance(record, Accepted):
            found[record.id] = (plain(record), None)
        elif isinstance(record, Deleted):
            found.pop(record.id, None)
        elif record.id in found:
            found[record.id] = (found[record.id][0], plain(record))
    return found


@st.composite
def histories(draw: st.DrawFn) -> list[Record]:
    numbers = st.integers(0, 4)
    texts = st.text(max_size=40)
    kinds = st.one_of(
        st.builds(accepted, numbers, texts), st.builds(concluded, numbers, st.just("completed"), texts), st.builds(Deleted, id=numbers.map(name_of))
    )
    return draw(st.lists(kinds, max_size=12))


@settings(max_examples=60)
@given(histories(), st.data())
def test_what_was_cut_off_is_lost_and_nothing_before_it(records: list[Record], data: st.DataObject) -> None:
    """Appended over several lives of the file, which ends anywhere at last."""
    with TemporaryDirectory() as folder:
        path, ends = Path(folder) / "journal", [len(TITLE)]
        while len(ends) <= len(records):
            file = JournalFile(path)
            count = data.draw(st.integers(1, len(records) - len(ends) + 1))
            batch = records[len(ends) - 1 : len(ends) - 1 + count]
            file.append(batch)
            ends += [ends[-1] + sum(len(pack(record)) for record in batch[: number + 1]) for number in range(len(batch))]
            file.close()
        assert opened(path) == (expected(records), 0) or not records
        cut = data.draw(st.integers(0, os.path.getsize(path) if records else 0))
        if records:
            os.truncate(path, cut)
        whole = sum(end <= cut for end in ends[1:])
        assert opened(path) == (expected(records[:whole]), 0)
        assert opened(path) == (expected(records[:whole]), 0)


@settings(max_examples=80)
@given(histories().filter(bool), st.data())
def test_what_is_damaged_is_skipped(records: list[Record], data: st.DataObject) -> None:
    """Bytes anywhere behind the title become others: the records that were hit are gone, all others are there."""
    packed = [pack(record) for record in records]
    at = data.draw(st.integers(0, sum(map(len, packed)) - 1))
    noise = data.draw(st.binary(min_size=1, max_size=30))
    whole = b"".join(packed)
    damaged = (whole[:at] + noise + whole[at + len(noise) :])[: len(whole)]
    left, offset = [], 0
    for record, piece in zip(records, packed, strict=True):
        if damaged[offset : offset + len(piece)] == piece:
            left.append(record)
        offset += len(piece)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal"
        path.write_bytes(TITLE + damaged)
        found, count = opened(path)
        assert found == expected(left)
        assert count == (len(left) < len(records) and damaged.endswith(packed[-1]))  # what is lost at the end is taken for cut off


@given(st.binary(max_size=300))
def test_any_bytes_can_be_looked_through(data: bytes) -> None:
    assert all(place.offset + place.size <= len(data) for place in whole_records(journal_file.MARK + data))


def test_a_record_of_another_version_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    record = accepted(1)
    path.write_bytes(TITLE + framed(plain(accepted(2)).replace(b"accepted", b"imagined")) + pack(record))
    assert opened(path) == (expected([record]), 1)


def test_the_file_is_its_owners_alone_and_nobody_elses_file_is_touched(tmp_path: Path) -> None:
    JournalFile(tmp_path / "journal").close()
    assert stat.S_IMODE((tmp_path / "journal").stat().st_mode) == 0o600
    (tmp_path / "letter").write_text("Dear all, this is no journal.")
    with pytest.raises(JournalError, match="is not a journal"):
        JournalFile(tmp_path / "letter")
    assert (tmp_path / "letter").read_text() == "Dear all, this is no journal."


def test_two_names_of_a_file_are_one_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_file, "LOCK_SECONDS", 0.1)
    file = JournalFile(tmp_path / "journal")
    (tmp_path / "other").hardlink_to(tmp_path / "journal")
    with pytest.raises(JournalError, match="is used by a running cluster"):
        JournalFile(tmp_path / "other")
    file.append([accepted(1)])
    file._write_anew()
    (tmp_path / "again").hardlink_to(tmp_path / "journal")
    with pytest.raises(JournalError, match="is used by a running cluster"):
        JournalFile(tmp_path / "again")
    JournalFile(tmp_path / "other").close()  # is what the journal was then
    file.close()
    JournalFile(tmp_path / "again").close()


def test_what_no_longer_counts_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_file, "SLACK_BYTES", 2000)
    path = tmp_path / "journal"
    file = JournalFile(path)
    kept: list[Record] = [accepted(1000, "kept"), concluded(1000)]
    file.append(kept)
    for number in range(50):
        file.append([accepted(number, "x" * 500)])
        file.append([Deleted(id=name_of(number))] if number % 2 else [concluded(number)])
        file.forget([name_of(number)])
        assert os.path.getsize(path) == file.size < 2 * 3000 + 2000
    assert not (tmp_path / "journal.new").exists()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    file.close()
    assert expected(kept).items() <= opened(path)[0].items()


def test_a_full_disk_loses_nothing_and_the_file_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    file = JournalFile(path)
    first, second, third = accepted(1), accepted(2, "y" * 5000), accepted(3)
    file.append([first])
    size, write = file.size, os.pwrite

    def some(descriptor: int, data: memoryview, offset: int) -> int:
        room = size + 100 - offset
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:room], offset)

    monkeypatch.setattr(os, "pwrite", some)
    with pytest.raises(OSError, match="No space"):
        file.append([second])
    assert os.path.getsize(path) == size
    monkeypatch.undo()
    file.append([third])
    file.close()
    assert opened(path) == (expected([first, third]), 0)


def test_what_the_disk_did_not_confirm_is_not_relied_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failed synchronisation nobody knows what is on the disk: the next append writes the file anew."""
    path = tmp_path / "journal"
    file = JournalFile(path)
    first, second, third = accepted(1), accepted(2), accepted(3)
    file.append([first])
    before = path.stat().st_ino

    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    with pytest.raises(OSError, match="Input/output"):
        file.append([second])
    monkeypatch.undo()
    file.append([third])
    assert path.stat().st_ino != before
    file.close()
    assert opened(path) == (expected([first, third]), 0)


def test_records_that_could_not_be_taken_back_do_not_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half written, and the file cannot be cut: the record behind the first one is whole there, and a shorter one would stop before it."""
    path = tmp_path / "journal"
    file = JournalFile(path)
    write = os.pwrite

    def half(descriptor: int, data: memoryview, offset: int) -> int:
        if len(data) < 4000:
            raise OSError(errno.EIO, "Input/output error")
        return write(descriptor, data[: len(data) - 3000], offset)

    def broken(descriptor: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", half)
    monkeypatch.setattr(os, "ftruncate", broken)
    with pytest.raises(OSError, match="Input/output"):
        file.append([accepted(1), accepted(2), accepted(3, "y" * 4000)])
    monkeypatch.undo()
    file.append([Concluded(id=name_of(9), body=b"{}")])
    file.close()
    assert opened(path) == ({}, 0)


def test_what_was_begun_anew_and_not_ended_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    file = JournalFile(path)
    file.append([accepted(1), Concluded(id=name_of(9), body=b"{}")])
    file.close()
    (tmp_path / "journal.new").write_bytes(b"half")
    assert list(opened(path)[0]) == [name_of(1)]
    assert not (tmp_path / "journal.new").exists()
