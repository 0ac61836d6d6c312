"""`simulate` and `bench scheduler` on the command line: what they print, and what they say when they cannot."""

import json
from pathlib import Path

import pytest

from launcher.cli import main
from simulator.cost import DEFAULT, CostModel, load_cost_model, save_cost_model
from simulator.errors import SimulatorError
from simulator.work import Work

ROOT = Path(__file__).resolve().parents[2]
QUICK = ["--workload", "random", "--requests", "20", "--rate", "5", "--prompt-tokens", "40", "--max-tokens", "10"]


def test_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *QUICK]) == 0
    out = capsys.readouterr()
    assert "workload random: 20 requests" in out.out
    for word in ("makespan", "throughput", "TTFT", "ITL", "hit rate", "preemptions", "p99", "KV memory"):
        assert word in out.out
    assert "simulated in" in out.err


def test_json_and_a_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "plot.html"
    chat = ["--workload", "chat", "--users", "2", "--turns", "2"]
    command = ["simulate", *chat, "--json", "--slots", "4", "--target-itl", "50", "--prefix-cache", "off"]
    assert main([*command, "--plot", str(plot)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["workload"], found["requests"], found["finished"]) == ("chat", 4, 4)
    assert (found["settings"]["slots"], found["settings"]["target_itl"], found["settings"]["prefix_cache"]) == (4, 0.05, False)
    assert found["cost_model"]["name"] == "cpu-smollm2-135m"
    assert plot.read_text().startswith("<!DOCTYPE html>")
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out) == found


@pytest.mark.parametrize(
    ("command", "code", "sentence"),
    [
        ([], 2, "name either a recording"),
        (["x.rec", "--workload", "A"], 2, "name either a recording"),
        (["--workload", "A", "--replay"], 2, "--replay needs a recording"),
        (["--workload", "A", "--fit", "m.json"], 2, "--fit needs a recording"),
        (["recording", "--fit", "./recording"], 2, "would be overwritten"),
        (["--workload", "A", "--cost-model", "m.json", "--plot", "m.json"], 2, "would be overwritten"),
        (["x.rec", "--replay", "--fit", "m.json"], 2, "leave one of them out"),
        (["absent.rec"], 1, "cannot read absent.rec"),
        ([*QUICK, "--cost-model", "absent.json"], 1, "cannot read the cost model absent.json"),
        ([*QUICK, "--plot", "/absent/plot.html"], 1, "cannot write /absent/plot.html"),
        ([*QUICK, "--max-context", "20"], 1, "refused"),
    ],
)
def test_errors_say_what_to_do(command: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["simulate", *command]) == code
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--blocks", "0"], ["--run-ahead", "9"], ["--target-itl", "0"], ["--workload", "B"], ["--speed", "nan"]])
def test_values_out_of_range_are_wrong_usage(option: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", *QUICK, *option])
    assert stopped.value.code == 2
    assert option[0] in capsys.readouterr().err


@pytest.mark.parametrize("path", [DEFAULT, *sorted((ROOT / "bench" / "cost_models").glob("*.json"))], ids=lambda path: path.stem)
def test_shipped_cost_models_are_sound(path: Path) -> None:
    model = load_cost_model(path)
    assert model.source
    assert 0 < model.seconds(Work(0, 1, 100)) < model.seconds(Work(256, 8, 4000)) < 10


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "no cost model"),
        ('{"name": "x"}', "base"),
        ('{"name": "x", "base": -1}', "base"),
        ('{"name": "x", "base": 1e999}', "no cost model"),
        ('{"name": "x", "base": 1, "typo": 2}', "typo"),
        ('{"name": "x", "base": 0}', "take no time"),
        (" " * 70_000, "bytes"),
    ],
)
def test_a_bad_cost_model_is_named(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text)
    with pytest.raises(SimulatorError, match=sentence):
        load_cost_model(path)


def test_a_cost_model_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    model = CostModel(name="x", base=0.1, decode_row=0.2, latency=0.001)
    save_cost_model(model, tmp_path / "m.json")
    assert load_cost_model(tmp_path / "m.json") == model


def test_bench_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "scheduler", "--rows", "4,8", "--steps", "20", "--no-growth"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(run["rows"], run["load"], run["prefix_cache"]) for run in found["runs"][:4]] == [
        (4, "steady", True), (4, "churn", True), (4, "steady", False), (4, "churn", False),
    ]  # fmt: skip
    assert found["growth"] == []
    assert {"machine", "commit", "command", "run_ahead"} <= found.keys()
    for run in found["runs"]:
        assert 0 < run["step_us"]["median"] <= run["step_us"]["p99"]
        assert 0 < run["plan_bytes"]["median_without_new_blocks"] <= run["plan_bytes"]["median"] <= run["plan_bytes"]["max"]
        assert run["finished_per_step"] == pytest.approx(1.0 if run["load"] == "churn" else 0.0, abs=0.15)
    assert main(command) == 0
    assert "median us" in capsys.readouterr().out


def test_bench_scheduler_wants_counts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "scheduler", "--rows", "4,x"])
    assert "not a whole number" in capsys.readouterr().err
