"""`bench grammars`: lines for compiling and for each number of rows, and how they are printed."""

import json
import subprocess
from pathlib import Path

import pytest
import torch

from bench import grammars
from launcher import bench_grammars
from launcher.cli import build_parser
from launcher.errors import LauncherError


def test_what_is_measured(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("STEPS", 40), ("COMPILED", 2), ("ROWS", (1, 3))):
        monkeypatch.setattr(grammars, name, value)
    opened, *rows = grammars.measure(models / "chain-byte", torch.device("cpu"))
    assert opened["vocabulary"] == 312
    assert [line["rows"] for line in rows] == [1, 3]
    assert all(0 < line["masks_ms"] <= line["masks_p99_ms"] for line in rows)
    assert all(line["apply_ms"] > 0 for line in rows)
    assert all(0 < line["masks_core_ms"] <= line["masks_core_p99_ms"] for line in rows)


LINES = [
    {"vocabulary": 312, "open_ms": 5.0, "compile_ms": 0.5},
    *({"rows": rows, "masks_ms": 0.1, "masks_p99_ms": 0.2, "masks_core_ms": 0.1, "masks_core_p99_ms": 0.3, "apply_ms": 0.05} for rows in (1, 64)),
]


def test_how_it_is_printed(models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def measured(command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "".join(json.dumps(line) + "\n" for line in LINES))

    monkeypatch.setattr("launcher.bench_grammars.subprocess.run", measured)
    monkeypatch.setattr("launcher.machine.commit", lambda: "none")
    args = build_parser("bench").parse_args(["bench", "grammars", "--model", str(models / "chain-byte")])
    assert bench_grammars.run(args) == 0
    assert asked[-1][-2:] == [str(models / "chain-byte"), "cpu"]
    printed = capsys.readouterr().out
    assert "vocabulary of 312" in printed
    assert " 1 rows: masks" in printed
    assert "64 rows: masks" in printed
    args.json = True
    assert bench_grammars.run(args) == 0
    assert json.loads(capsys.readouterr().out)["measured"] == LINES


def test_a_model_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWIRE_CACHE", str(tmp_path))
    args = build_parser("bench").parse_args(["bench", "grammars"])
    with pytest.raises(LauncherError, match="model pull"):
        bench_grammars.run(args)
