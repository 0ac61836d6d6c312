"""The benches that need no HTTP: their floors, what they refuse, and one run of each on a small model on the CPU."""

import json
from pathlib import Path

import pytest

from checkpoint.shapes import SHAPES
from launcher.cli import build_parser, main
from launcher.errors import LauncherError
from launcher.floor import Floor
from launcher.sizes import CPU, GPU, sizes_from
from launcher.trace_steps import read_steps
from simulator.offline import offline256

COPY = 4.28e12


@pytest.mark.parametrize(
    ("name", "weights_gb", "single_ms", "offline_s"),
    [("qwen3-0.6b", 1.19, 0.28, 3.74), ("llama3.2-1b", 2.47, 0.58, 1.96), ("llama3.1-8b", 15.0, 3.5, 10.4)],
)
def test_floors(name: str, weights_gb: float, single_ms: float, offline_s: float) -> None:
    """As worked out by hand; 16.06 GB of Llama-3.1-8B less the embedding, of which a step reads rows only."""
    floor = Floor(config=SHAPES[name], bandwidth=COPY)
    assert floor.weights / 1e9 == pytest.approx(weights_gb, rel=0.01)
    assert floor.decode(1, 0) * 1e3 == pytest.approx(single_ms, rel=0.02)
    jobs = offline256().fixed
    found = floor.offline([len(job.prompt) for job in jobs], [job.max_tokens or 0 for job in jobs])
    assert found == pytest.approx(offline_s, rel=0.06)


def test_floors_of_fewer_bits() -> None:
    wide = Floor(config=SHAPES["llama3.1-8b"], bandwidth=COPY)
    narrow = Floor(config=SHAPES["llama3.1-8b"], bandwidth=COPY, matrix_item=1, kv_item=1)
    assert narrow.token == wide.token // 2
    head = 2 * 128_256 * 4096
    assert narrow.weights == pytest.approx((wide.weights - head) / 2 + head, rel=0.001)


def test_sizes_follow_the_device() -> None:
    start = ["cluster", "start"]
    assert sizes_from(build_parser("").parse_args(start)) == CPU
    assert sizes_from(build_parser("").parse_args([*start, "--device", "cuda:1"])) == GPU
    found = sizes_from(build_parser("").parse_args([*start, "--max-step-tokens", "128", "--run-ahead", "1"]))
    assert (found.chunk_tokens, found.run_ahead, found.max_slots) == (128, 1, 64)
    with pytest.raises(LauncherError, match="every slot needs a token"):
        sizes_from(build_parser("").parse_args([*start, "--device", "cuda", "--max-step-tokens", "128"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either --model or --model-shape"),
        (["--model-shape", "llama9"], "is not one of qwen3-0.6b"),
        (["--model-shape", "qwen3-0.6b"], "add --dummy-weights"),
        (["--model", "/nowhere/at/all"], "no such file"),
        (["--model-shape", "qwen3-0.6b", "--dummy-weights", "--trace", __file__], "a trace is never written over"),
    ],
)
def test_what_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "single", "--device", "cpu", *arguments]) != 0
    assert message in capsys.readouterr().err


def test_a_run_through_both_processes(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--model", str(models / "dice-byte"), "--device", "cpu", "--threads", "1", "--kv-tokens", "2048", "--max-context", "1024"]
    trace = tmp_path / "trace.json"
    assert main(["bench", "single", *given, "--runs", "1", "--trace", str(trace), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(read_steps(trace).steps) == 512
    assert json.loads(trace.read_bytes())[-1]["name"] == "trace ends"
    assert report["steps"] == 512
    assert report["ms_per_token"] > report["floor_ms"] > 0
    assert report["share_of_floor"] == pytest.approx(report["floor_ms"] / report["ms_per_token"], rel=1e-3)


def test_a_worker_that_cannot_load_says_why(models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_bytes((models / "dice-byte" / "config.json").read_bytes())
    assert main(["bench", "single", "--model", str(tmp_path), "--device", "cpu"]) == 1
    assert "worker0 ended (exit code 1)" in capsys.readouterr().err
