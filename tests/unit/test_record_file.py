"""The file of a recording: private, new, on the disk in time; disks that are full or stuck; and the cost."""

import time
from io import BytesIO, FileIO
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from messages.plan import Prefills, StepPlan
from messages.result import StepResult
from scheduler.record_file import RecordFile
from scheduler.recorded import RecordedEngine
from scheduler.recorder import Recorder, start_recording
from tests.support.recordings import RecordedBench, read_all
from tests.support.scheduler_bench import arguments, prompt_of
from tests.support.waiting import wait_until
from transport.columns import pack_i32


def test_the_file_is_private_and_new(tmp_path: Path) -> None:
    args = arguments(record=str(tmp_path / "r"))
    start_recording(args).stop()
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o600
    before = (tmp_path / "r").read_bytes()
    again = start_recording(args)
    assert again.errors == 1
    again.turn(1.0)
    again.stop()
    assert (tmp_path / "r").read_bytes() == before


def test_a_restarted_scheduler_records_into_a_file_beside(tmp_path: Path) -> None:
    start_recording(arguments(record=str(tmp_path / "r"))).stop()
    second = start_recording(arguments(record=str(tmp_path / "r"), incarnation=2))
    second.stop()
    assert second.errors == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "r.2"]


def test_a_full_disk_ends_the_recording_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    bench = RecordedBench(None, tokens=True)
    bench.recorder = Recorder(RecordFile(FileIO("/dev/full", "wb")), bench.args)
    assert isinstance(bench.engine, RecordedEngine)
    bench.engine._recorder = bench.recorder
    keys = bench.admit(prompt_of(9), 20, n=3)
    bench.settle()
    wait_until(lambda: turn(bench) and bench.recorder.errors == 1)
    keys += bench.admit(prompt_of(9), 20, n=3)
    bench.settle()
    assert set(bench.clients["tokenizer0"].finish) == set(keys)
    bench.recorder.stop()
    assert bench.recorder.errors == 1
    assert [record.getMessage() for record in caplog.records] == ["the recording ends here, serving goes on: [Errno 28] No space left on device"]


def turn(bench: RecordedBench) -> bool:
    """A turn late enough for what is buffered to be written."""
    bench.now += 1.0
    bench.plan()
    return True


class Slow(BytesIO):
    """Takes a few bytes at a time."""

    taken = b""

    def write(self, data: Any) -> int:
        return super().write(memoryview(data)[:7])

    def close(self) -> None:
        self.taken = self.getvalue()
        super().close()


def test_writes_that_take_a_part_only(tmp_path: Path) -> None:
    file = Slow()
    recorder = Recorder(RecordFile(file), arguments(record_tokens=True))
    recorder.turn(1.0)
    recorder.turn(2.0)
    recorder.stop()
    (tmp_path / "r").write_bytes(file.taken)
    assert read_all(tmp_path / "r") == (2, 0)


class Stuck(BytesIO):
    """A disk that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.free = Event()

    def write(self, data: Any) -> int:
        self.free.wait(60)
        return super().write(data)


def test_a_stuck_disk_is_given_up(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("scheduler.record_file.MAX_PENDING_BYTES", 1 << 20)
    monkeypatch.setattr("scheduler.record_file.CLOSE_SECONDS", 0.05)
    file = Stuck()
    recorder = Recorder(RecordFile(file), arguments(record_tokens=True))
    while not recorder.errors:
        recorder.turn(1.0)
    recorder.stop()
    assert "the disk has not taken 1 MiB in time" in caplog.text
    file.free.set()
    wait_until(lambda: file.closed)


def test_a_stuck_disk_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("scheduler.record_file.CLOSE_SECONDS", 0.05)
    file = Stuck()
    recorder = Recorder(RecordFile(file), arguments(record_tokens=True))
    recorder.stop()
    assert recorder.errors == 1
    assert "the disk has not taken the last bytes in 0.05 s" in caplog.text
    file.free.set()
    wait_until(lambda: file.closed)


def test_it_is_on_the_disk_after_a_second(tmp_path: Path) -> None:
    recorder = start_recording(arguments(record=str(tmp_path / "r")))
    recorder.turn(10.0)
    recorder.opened()
    recorder.turn(10.3)
    wait_until(lambda: (tmp_path / "r").stat().st_size > 0 and read_all(tmp_path / "r") == (1, 0))
    recorder.turn(10.9)
    wait_until(lambda: read_all(tmp_path / "r") == (4, 0))
    for _ in range(5000):
        recorder.turn(10.95)
    wait_until(lambda: read_all(tmp_path / "r")[0] > 1000)
    recorder.stop()
    recorder.opened()
    assert read_all(tmp_path / "r") == (5004, 0)


@pytest.mark.parametrize("tokens", [True, False])
def test_the_cost_of_a_step_of_256_rows(tokens: bool, tmp_path: Path) -> None:
    """A result, a turn and a plan: less than 30 microseconds on an ordinary machine, with a margin for slow ones."""
    recorder = start_recording(arguments(record=str(tmp_path / "r"), record_tokens=tokens))
    slots, ones = pack_i32(range(256)), pack_i32([1] * 256)
    chunks = Prefills(slot=slots, start=bytes(1024), count=ones, sample=b"\1" * 256, tokens=ones)
    recorder.planned(StepPlan(session=1, step=1, prefill=chunks))
    recorder.planned(StepPlan(session=1, step=2, decode=b"\xff" * 32))
    result = StepResult(session=1, step=1, slot=slots, token=slots, status=bytes(256))
    plan = StepPlan(session=1, step=3, decode=None)
    costs = []
    for number in range(2000):
        start = time.process_time_ns()
        recorder.received(result, number * 0.01)
        recorder.turn(number * 0.01)
        recorder.planned(plan)
        costs.append((time.process_time_ns() - start) / 1000)
    recorder.stop()
    print(f"{'with' if tokens else 'without'} tokens: median {sorted(costs)[1000]:.1f}, mean {sum(costs) / 2000:.1f} microseconds a step")
    assert sorted(costs)[1000] < 100
