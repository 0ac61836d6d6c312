"""`trace summary`: its figures of a trace made by hand, files that are damaged or none, and what it prints."""

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main
from launcher.errors import LauncherError
from launcher.trace_steps import read_steps
from launcher.trace_summary import summary, text
from transport import trace_file
from transport.trace import Trace

MS = 1e-3


def step(
    tracks: dict[str, Any], number: int, rows: int, prefill: int = 0, at: float = 0.0, gap: float = 0.0, session: int = 1, whole: bool = True
) -> None:
    """A step planned at `at` whose stages take 1, 2, 3, 4, 50 and 6 ms."""
    flow, args = (session, number), {"session": session, "step": number, "decode_rows": rows, "prefill_tokens": prefill}
    note = tracks["trace"].add
    kind = "decode" if not prefill else "mixed" if rows else "prefill"
    if whole:
        note(tracks["scheduler"].span("plan", at, at + 1 * MS, args, flow, flow_out=True))
        note(tracks["scheduler"].span("result", at + 65 * MS, at + 66 * MS, args, flow, flow_in=True))
    note(tracks["worker0"].span("launch", at + 3 * MS, at + 6 * MS, args, flow, flow_in=True, flow_out=True))
    device = args | {"device_us": 50_000.0, "gap_us": gap * 1e6}
    note(tracks["device"].span(kind, at + 10 * MS, at + 60 * MS, device, flow, flow_in=True, flow_out=True))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Prefill, two decode steps of 256 rows, two of 8, a mixed step, a decode step, and one of another session."""
    made = tmp_path / "trace.json"
    trace_file.begin(str(made))
    scheduler, worker = Trace(str(made), "scheduler"), Trace(str(made), "worker0")
    tracks = {"trace": worker, "scheduler": scheduler.thread("scheduler"), "worker0": worker.thread("plans"), "device": worker.device("device")}
    step(tracks, 1, 0, prefill=512)
    step(tracks, 2, 256, at=0.1, gap=7 * MS)
    step(tracks, 3, 256, at=0.2, gap=1 * MS)
    step(tracks, 4, 8, at=0.3, gap=50 * MS)
    step(tracks, 5, 8, at=0.4, gap=2 * MS, whole=False)
    step(tracks, 6, 8, prefill=16, at=0.5, gap=3 * MS)
    step(tracks, 7, 8, at=0.6, gap=3 * MS)
    step(tracks, 8, 8, at=0.7, gap=9.0, session=2)
    scheduler.close()
    worker.close()
    trace_file.finish(str(made))
    return made


def test_figures(path: Path) -> None:
    found = summary(read_steps(path), None)
    assert (found["steps"], found["most_rows"], found["damaged_lines"], found["processes"]) == (8, 256, 0, ["scheduler", "worker0"])
    assert found["seconds"] == pytest.approx(0.75)
    assert found["busy_share"] == pytest.approx(0.4 / 0.75, abs=1e-5)
    assert {kind: times["count"] for kind, times in found["device"].items()} == {"decode": 6, "prefill": 1, "mixed": 1}
    assert found["device"]["decode"]["median"] == pytest.approx(50_000)
    assert found["idle"] == {"rows": 1, "share": pytest.approx(53 / 203, abs=1e-5), "count": 3, "median": 2000.0, "p99": 49_040.0, "most": 50_000.0}
    assert found["idle_wide"] == {"rows": 256, "share": pytest.approx(1 / 51, abs=1e-5), "count": 1, "median": 1000.0, "p99": 1000.0, "most": 1000.0}
    medians = {stage: stages["median"] for stage, stages in found["stages"].items()}
    assert medians == {"plan": 1000.0, "queue": 2000.0, "launch": 3000.0, "wait": 4000.0, "device": 50_000.0, "result": 6000.0}
    assert sum(stages["share"] for stages in found["stages"].values()) == pytest.approx(1.0, abs=1e-4)


def test_a_trace_that_was_cut_says_so(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scheduler writes no more at its limit, the worker goes on, the file gets its end."""
    path.unlink()
    trace_file.begin(str(path))
    scheduler, worker = Trace(str(path), "scheduler", limit=300), Trace(str(path), "worker0")
    tracks = {"trace": worker, "scheduler": scheduler.thread("scheduler"), "worker0": worker.thread("plans"), "device": worker.device("device")}
    scheduler.close()
    step(tracks, 1, 8, whole=False)
    worker.close()
    trace_file.finish(str(path))
    assert main(["trace", "summary", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["cut"], report["has_end"]) == (["scheduler"], True)
    assert "cut: scheduler could not write all of it" in text(report)


def test_rows_that_were_never_there(path: Path) -> None:
    found = summary(read_steps(path), 300)
    assert found["idle_wide"] == {"rows": 300, "share": 0.0, "count": 0}
    assert "of 300 rows or more" in text(found)


def test_what_is_printed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "summary", str(path), "--rows", "8"]) == 0
    out = capsys.readouterr().out
    assert "8 steps in 0.750 s, by scheduler, worker0" in out
    assert "could not" not in out
    assert main(["trace", "summary", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["idle_wide"]["rows"] == 256


def test_steps_one_by_one(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", "steps", str(path), "--first", "2", "--count", "3", "--kind", "decode", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in rows] == [3, 4, 5]
    assert rows[0] == {
        "step": 3, "kind": "decode", "prefill": 0, "rows": 256, "at ms": 200.0, "plan": 1000.0, "queue": 2000.0, "launch": 3000.0, "wait": 4000.0,
        "device": 50_000.0, "result": 6000.0, "gap": 1000.0,
    }  # fmt: skip
    assert (rows[2]["plan"], rows[2]["queue"], rows[2]["result"], rows[2]["launch"], rows[2]["at ms"]) == (None, None, None, 3000.0, 403.0)
    assert main(["trace", "steps", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (len(lines), lines[1].split()[:5]) == (9, ["1", "prefill", "512", "0", "0.0"])


def test_without_an_end_and_with_a_torn_line(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b'"trace ends"')])
    found = read_steps(path)
    assert (len(found.steps), found.damaged) == (8, 1)
    assert "1 lines could not be read\nwithout an end: " in text(summary(found, None))
    path.write_bytes(b"[\n" + whole[len(whole) // 2 :])
    assert read_steps(path).damaged == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no trace: make one with cluster start --trace FILE"),
        (b"\xff\x00 nothing of the kind\n[1, 2]\n", "is no trace"),
        (b'[\n{"name":"plan","ph":"X","pid":1,"tid":1,"ts":1,"dur":1}\n]\n', "no step was computed"),
        (b'[\n{"name":"plan","ph":"X","pid":1,"tid":1,"dur":1,"bind_id":"0x1","args":{"session":1,"step":1}}\n]\n', "no step was computed"),
    ],
)
def test_files_that_are_no_trace(content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").write_bytes(content)
    assert main(["trace", "summary", str(tmp_path / "t")]) == 1
    assert message in capsys.readouterr().err


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="No such file"):
        read_steps(tmp_path / "none")
