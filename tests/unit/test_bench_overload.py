"""`bench overload`: what a load came to, its table and its plot, and what it does against a server that refuses."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.overload_plot import main as plot
from launcher.cli import main
from launcher.load import Outcome
from launcher.overload_figures import REFUSED, rates, table
from tests.support.fake_server import FakeServer


def outcome(due: float, first: float | None = None, ended: float = 0.0, tokens: int = 10, error: str | None = None) -> Outcome:
    return Outcome(due=due, sent=due, first=first, ended=ended or due, tokens=0 if error else tokens, error=error)


def test_a_load_is_counted_between_two_times() -> None:
    outcomes = [
        outcome(1.0, 1.5, 4.0),  # due before, ended within
        outcome(3.0, 3.5, 5.0), outcome(4.0, 6.5, 7.0), outcome(6.0, 6.1, 9.0),  # in time, too late, ended after
        outcome(5.0, error=REFUSED), outcome(5.0, error=REFUSED),
        outcome(5.5, error="HTTP 504"), outcome(7.0, error="stream error deadline_exceeded"),
        outcome(7.0, error="timeout"), outcome(8.5, error="timeout"),
    ]  # fmt: skip
    found = rates(outcomes, 2.0, 8.0, 2.0)
    assert {name: found[name] for name in ("requests", "failed", "tok_s", "goodput_tok_s")} == {
        "requests": 8, "failed": 1, "tok_s": 5.0, "goodput_tok_s": round(20 / 6, 1)
    }  # fmt: skip
    assert [found[name] for name in ("offered_s", "accepted_s", "refused_s", "late_s")] == [1.333, 1.0, 0.333, 0.333]
    assert found["ttft_ms"] == {"p50": 500.0, "p99": pytest.approx(2460, abs=1)}
    empty = rates([], 2.0, 8.0, 2.0)
    lines = table([{"load": 1.5, **found, "preemptions": 3.0}, {"load": 4.0, **empty, "preemptions": 0.0}], 10.0).splitlines()
    assert lines[1].split() == ["1.5x", "1.33", "1.00", "0.33", "0.33", "1", "5.0", "3.3", "33%", "500", "2460", "3"]
    assert lines[2].split()[-3:] == ["-", "-", "0"]


def test_the_plot_has_a_line_for_each_file_and_says_what_it_shows(tmp_path: Path) -> None:
    run = {"goodput_tok_s": 50.0, "ttft_ms": {"p50": 100.0, "p99": 2000.0}}
    report = {
        "prompt_tokens": 32, "max_tokens": 16, "ttft": 2.0, "capacity": {"requests_s": 5.0, "tok_s": 100.0},
        "runs": [{"load": load, **run} for load in (0.5, 1, 4)] + [{"load": 5, **run, "ttft_ms": None}],
    }  # fmt: skip
    files = [tmp_path / name for name in ("a", "b")]
    for file in files:
        file.write_text(json.dumps(report))
    root = ElementTree.fromstring(plot([f"with <bound>={files[0]}", f"without={files[1]}"]))
    text = " ".join(element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}text"))
    for words in ("with <bound>", "without", "Goodput, % of capacity", "Time to first token, p99, s", "of capacity", "5.0 requests/s", "2 s"):
        assert words in text
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 4


def test_against_a_server(capsys: pytest.CaptureFixture[str]) -> None:
    with FakeServer(serial_seconds=0.01) as server:
        command = ["bench", "overload", "--url", server.url, "--seconds", "1", "--streams", "2", "--loads", "0.2,0.5", "--max-tokens", "8", "--json"]
        for _ in range(5):
            code = main(command)
            out, err = capsys.readouterr()
            if "no request ended within" not in err:  # as on a machine that stands still for that second
                break
        assert code == 0
        report = json.loads(out)
    assert report["capacity"]["requests_s"] > 0
    assert [run["load"] for run in report["runs"]] == [0.2, 0.5]
    assert all(run["failed"] == run["refused_s"] == 0 for run in report["runs"])
    assert main(["bench", "overload", "--start", "--paced", "5"]) == 2
    assert main(["bench", "overload", "--paced", "5", "--url", "http://127.0.0.1:1"]) == 2
