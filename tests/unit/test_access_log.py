"""The access log's writer: a disk that is full, readers that are gone or do not read, files that are moved; whoever adds a line never waits."""

import os
import threading
import time
from pathlib import Path

import pytest

from frontend import access_log
from frontend.access_log import MOST_PENDING, PIECE_BYTES, AccessLog
from tests.support.waiting import wait_until

LINE = b'{"status":200}\n'


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "FLUSH_SECONDS", 0.01)


def test_lines_are_appended_in_order_and_the_last_ones_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"before\n")
    log = AccessLog(str(path))
    lines = [b"%d\n" % number for number in range(3000)]
    for line in lines:
        log.add(line)
    log.close()
    assert path.read_bytes() == b"before\n" + b"".join(lines)
    assert (log.lines, log.dropped) == (3000, 0)


def test_a_full_disk_loses_lines_says_so_once_and_is_forgiven(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    log = AccessLog(str(path))
    for number in range(3):
        log.add(LINE)
        wait_until(lambda lost=number + 1: log.dropped == lost)  # type: ignore[misc]
    path.unlink()  # there is room again
    log.add(LINE)
    wait_until(lambda: log.lines == 1)
    log.close()
    assert path.read_bytes() == LINE
    assert [record.message for record in caplog.records] == [
        "access log: No space left on device: lines are lost until they can be written again",
        "the access log goes on; 3 lines were lost so far",
    ]


def test_a_line_that_was_cut_off_is_not_continued(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The disk takes half a line and then no more: the next line begins a line of its own."""
    log = AccessLog(str(tmp_path / "log"))
    write, room = os.write, [5]

    def narrow(fd: int, data: "memoryview[int]") -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = write(fd, data[: room[0]])
        room[0] -= written
        return written

    monkeypatch.setattr(os, "write", narrow)
    log.add(LINE)
    wait_until(lambda: log.dropped == 1)
    room[0] = 1 << 20
    log.add(LINE)
    log.close()
    assert (tmp_path / "log").read_bytes() == LINE[:5] + b"\n" + LINE


def test_a_closed_pipe_loses_lines_and_nothing_else() -> None:
    read, write = os.pipe()
    os.close(read)
    log = AccessLog(None, write)
    log.add(LINE)
    log.add(LINE)
    wait_until(lambda: log.dropped == 2)
    log.close()
    os.close(write)


def test_a_pipe_that_nobody_reads_costs_neither_time_nor_much_memory() -> None:
    read, write = os.pipe()
    log = AccessLog(None, write)
    count = MOST_PENDING + 3 * 65536 // len(LINE)
    began = time.thread_time()
    for _ in range(count):
        log.add(LINE)
    assert time.thread_time() - began < 1.0
    assert log.dropped > 0
    kept, found = count - log.dropped, b""
    while len(found) < kept * len(LINE):  # who reads at last has every line that was kept, whole
        found += os.read(read, 1 << 16)
    assert found == LINE * kept
    log.close()
    assert log.lines == kept
    os.close(read)
    os.close(write)


def test_closing_does_not_wait_for_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "CLOSE_SECONDS", 0.1)
    read, write = os.pipe()
    log = AccessLog(None, write)
    for _ in range(2 * 65536 // len(LINE)):
        log.add(LINE)
    log.close()
    assert log._thread.is_alive(), "nobody waited until it could write all"
    reader = threading.Thread(target=lambda: list(iter(lambda: os.read(read, 1 << 16), b"")))
    reader.start()
    wait_until(lambda: not log._thread.is_alive())
    os.close(write)
    reader.join()
    os.close(read)


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = AccessLog(str(path))
    log.add(b"first\n")
    wait_until(lambda: log.lines == 1)
    path.rename(tmp_path / "log.1")
    log.add(b"second\n")
    wait_until(lambda: log.lines == 2)
    path.write_bytes(b"")  # truncated in place (copytruncate): appended to from its new end
    log.add(b"third\n")
    log.close()
    assert ((tmp_path / "log.1").read_bytes(), path.read_bytes()) == (b"first\n", b"third\n")


def test_lines_longer_than_a_piece_go_alone() -> None:
    read, write = os.pipe()
    log = AccessLog(None, write)
    lines = [b"a\n", b"b" * (PIECE_BYTES + 10) + b"\n", b"c\n"]
    for line in lines:
        log.add(line)
    log.close()
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"".join(lines)
