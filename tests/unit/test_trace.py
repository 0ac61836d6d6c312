"""A process's part of a trace: whole lines whatever happens to the file, and hardly any time for the process."""

import errno
import json
import os
import stat
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from launcher.tracing import traced
from transport import trace, trace_file
from transport.lifetime import ProcessArgs
from transport.trace import Span, Trace, flow_of, open_trace
from transport.trace_file import TraceEnded, TraceFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "trace.json"
    trace_file.begin(str(made))
    return made


def events(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())
    return found


def eventually(path: Path, text: str) -> None:
    limit = time.monotonic() + 60
    while text not in path.read_text():
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_a_trace_is_json_of_named_tracks(path: Path) -> None:
    one = Trace(str(path), "worker0")
    plans = one.thread("plans")
    one.add((lambda step: [plans.span("launch", 1.5, 1.75, {"step": step}, (5, step), flow_in=True, flow_out=True)], 7))
    one.device("device").add("decode", 2.0, 1.0, {})
    one.device("copies").add("copy", 2.0, 3.0, {})
    one.long_span("request", 255, 1.0, 4.0, {"tokens": 3})
    one.close()
    trace_file.finish(str(path))
    found = events(path)
    assert [event["name"] for event in found if event["ph"] == "i"] == ["trace begins", "trace ends"]
    assert found[0]["args"]["unix_seconds"] == pytest.approx(time.time(), abs=60)
    assert found[0]["ts"] == pytest.approx(time.monotonic() * 1e6, abs=60e6)
    named = {event["tid"]: event["args"]["name"] for event in found if event["name"] == "thread_name"}
    assert named == {threading.get_native_id(): "plans", trace.FIRST_DEVICE + os.getpid(): "device", 2 * trace.FIRST_DEVICE + os.getpid(): "copies"}
    assert [event["args"] for event in found if event["name"] == "process_name"] == [{"name": "worker0"}]
    launch, decode = (next(event for event in found if event["name"] == name) for name in ("launch", "decode"))
    assert (launch["ts"], launch["dur"], launch["bind_id"], launch["flow_in"], launch["flow_out"]) == (1.5e6, 250e3, "0x500000007", True, True)
    assert (decode["dur"], "bind_id" in decode) == (0.0, False)  # time does not run backwards
    assert [(event["ph"], event["id"], event["ts"]) for event in found if event["name"] == "request"] == [("b", "0xff", 1e6), ("e", "0xff", 4e6)]
    assert {event["pid"] for event in found} == {os.getpid()}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_spans_that_follow_each_other_do_not_overlap(path: Path) -> None:
    """In whole nanoseconds, as viewers count; begun long after the machine was started."""
    one = Trace(str(path), "scheduler")
    track, times = one.thread("scheduler"), [3e6 + number * 1.23456789e-5 for number in range(1000)]
    for begin, end in pairwise(times):
        track.add("plan", begin, end, {})
    one.close()
    trace_file.finish(str(path))
    spans = [(round(event["ts"] * 1000), round(event["dur"] * 1000)) for event in events(path) if event["ph"] == "X"]
    assert all(begin + length == after for (begin, length), (after, _) in pairwise(spans))


def test_flows_of_steps_differ() -> None:
    assert len({flow_of(session, step) for session in (1, 2, 2**31 - 1) for step in (1, 2, 2**32 - 1)}) == 9


def test_several_append_whole_lines(path: Path) -> None:
    many = [Trace(str(path), f"p{number}") for number in range(4)]
    for number in range(3000):
        for one in many:
            one.long_span("request", number, 1.0, 2.0, {"text": "x" * (number % 50)})
    for one in many:
        one.close()
    trace_file.finish(str(path))
    assert sum(event["ph"] == "b" for event in events(path)) == 12_000


def test_it_is_on_the_disk_after_a_second_without_an_end(path: Path) -> None:
    one = Trace(str(path), "scheduler")
    eventually(path, "scheduler")
    assert json.loads(path.read_text().rstrip(",\n") + "]")
    one.close()


def test_an_array_without_an_end_may_be_continued(path: Path) -> None:
    """A process that was killed and started again."""
    for incarnation in ("first", "second"):
        one = Trace(str(path), incarnation)
        one.close()
    trace_file.finish(str(path))
    assert [event["args"]["name"] for event in events(path) if event["name"] == "process_name"] == ["first", "second"]


def test_no_file_is_said_and_costs_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = Trace(str(tmp_path / "none"), "scheduler")
    one._thread.join(10)
    one.thread("scheduler").add("plan", 1.0, 2.0, {})
    one.close()
    assert not (tmp_path / "none").exists()
    assert "the trace ends here, serving goes on: No such file or directory" in caplog.text
    assert not one._noted


def test_it_ends_at_its_limit(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = Trace(str(path), "scheduler", limit=4096)
    track = one.thread("scheduler")
    for number in range(300):
        track.add("plan", number, number + 1, {})
    one.close()
    one.close()
    trace_file.finish(str(path))
    assert 2 < len(events(path)) < 60
    assert caplog.text.count("the trace ends here, serving goes on: it has grown to 0.00390625 MiB") == 1


def test_a_full_disk_leaves_whole_lines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, write = TraceFile(str(path)), os.write
    file.append(b'{"name":"a"},\n')

    def little(descriptor: int, data: bytes) -> int:
        if len(data) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:8])

    monkeypatch.setattr("transport.trace_file.os.write", little)
    with pytest.raises(TraceEnded, match="No space left on device"):
        file.append(b'{"name":"a long one"},\n')
    monkeypatch.undo()
    file.close()
    trace_file.finish(str(path))
    assert [event["name"] for event in events(path)] == ["trace begins", "a", "trace ends"]


def test_a_disk_that_takes_parts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr("transport.trace_file.os.write", lambda descriptor, data: write(descriptor, data[:5]))
    trace_file.finish(str(path))
    assert len(events(path)) == 2


def test_a_stuck_disk_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(trace, "MOST_PENDING", 100)
    free = threading.Event()
    monkeypatch.setattr(TraceFile, "append", lambda self, lines: free.wait(20))
    monkeypatch.setattr(trace, "FLUSH_SECONDS", 0.01)
    one = Trace(str(path), "scheduler")
    for _ in range(2000):
        one.long_span("request", 1, 1.0, 2.0, {})
    assert "the disk has not taken 100 events in time" in caplog.text
    assert len(one._noted) == 0
    free.set()
    one.close()


def test_a_process_without_a_trace() -> None:
    assert open_trace(ProcessArgs(name="scheduler", incarnation=1, run_dir="/nowhere")) is None


def test_whoever_starts_processes_makes_and_ends_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = str(tmp_path / "t")
    with traced(None) as given:
        assert given is None
    with traced(path) as given:
        assert given == path
    assert len(events(tmp_path / "t")) == 2
    with traced(path) as given:
        assert given is None
    assert "nothing is traced" in caplog.text
    assert len(events(tmp_path / "t")) == 2
    with traced(str(tmp_path / "u")):
        (tmp_path / "u").unlink()
    assert "has no end" in caplog.text


def test_the_cost_of_a_span(path: Path) -> None:
    """Half a microsecond to note it and five to write it on an ordinary machine, with a margin for slow ones."""
    one = Trace(str(path), "scheduler")
    track = one.thread("scheduler")

    def make(session: int, step: int, rows: int, begin: float, end: float) -> list[Span]:
        return [track.span("plan", begin, end, {"step": step, "session": session, "decode_rows": rows}, (session, step), flow_out=True)]

    noted, began = [], time.process_time()
    for step in range(5000):
        start = time.perf_counter_ns()
        one.add((make, 1, step, 256, 1.0, 2.0))
        noted.append((time.perf_counter_ns() - start) / 1000)
    one.close()
    print(f"median {sorted(noted)[2500]:.2f} us to note, {(time.process_time() - began) / 5000 * 1e6:.2f} us with writing")
    assert sorted(noted)[2500] < 20
