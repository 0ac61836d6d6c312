"""`bench kernels`: what it refuses, which cases are asked for, and how a case is told."""

import json
import math
from pathlib import Path

import pytest
import torch

from bench.gpu.case import Case
from bench.gpu.kernels import entry, line, own_row, parts_of, wanted
from launcher.cli import main

ROWS = [(2e-6, "own", 1e-3), (1e-6, "other", 2e-3), (math.inf, "bad", math.nan), (4e-6, "library", 0.0)]


def case(operations: bool = False) -> Case:
    return Case(name="add T3", floor=4e6, sets=2, variants={}, error=lambda: 0.0, operations=operations, default="own")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("options", [[], ["--json", "--only", "norm"]])
def test_without_a_gpu(options: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", *options]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "error: kernels are measured on a GPU, and torch" in err


def test_an_expression_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--only", "("]) == 2
    assert "--only '(' is no regular expression" in capsys.readouterr().err


def test_the_report_says_where_it_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """With a stand-in for the process that measures."""
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho '{\"cases\": [], \"given\": \"'\"$*\"'\"}'\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr("launcher.bench_kernels.sys.executable", str(fake))
    assert main(["bench", "kernels", "--json", "--only", "norm", "--seconds", "5"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["given"] == "-P -m bench.gpu.kernels --seconds 5.0 --only norm --json"
    assert report["machine"]["cores"] >= 1


def test_which_cases() -> None:
    assert wanted("small/add T3", None)
    assert wanted("small/add T3", "small")
    assert wanted("small/add T3", "^small/.*T3$")
    assert not wanted("small/add T3", "attention|T4")


@pytest.mark.parametrize(
    ("only", "parts"),
    [(None, 4), ("norm", 4), ("small", 4), ("small/", 1), ("^fp8/.*T8", 1), ("(small|attention)/", 4), ("smaller/", 4)],
)
def test_parts_that_are_not_asked_for_are_not_made(only: str | None, parts: int) -> None:
    assert len(parts_of(only)) == parts


def test_a_case_in_words_and_in_json() -> None:
    assert own_row(case(), ROWS)[1] == "own"
    told = " ".join(line(case(), ROWS, 4e12).split())
    assert told == "add T3 2.00 us 4.00 MB 50.0% best 1.00 100.0% other library 4.00 WRONG 1: ['bad nan']"
    assert "0.0 GFLOP" in line(case(operations=True), ROWS, 4e12)
    found = json.loads(json.dumps(entry(case(), ROWS, 4e12), allow_nan=False))
    assert (found["bytes"], found["seconds"], found["share"]) == (4e6, 2e-6, pytest.approx(0.5))
    assert found["variants"][2] == {"label": "bad", "seconds": None, "error": None}
    assert "operations" in entry(case(operations=True), ROWS, 4e12)
