"""`bench frontend` and `bench serve --workload A` on their null engines: real processes and sockets, at loads that say nothing of speed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import main
from tests.support.frontend_peers import ROOT

SECONDS = 120


def bench(*arguments: str, seconds: float = SECONDS) -> tuple[dict[str, Any], str]:
    """The report of a successful run, and what it said on the way."""
    command = [sys.executable, str(ROOT / "launch.py"), "bench", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report, done.stderr


def test_bench_frontend_with_two_processes_on_one_port() -> None:
    report, _ = bench("frontend", "--frontends", "2", "--streams", "16", "--rates", "1600", "--seconds", "0.5", "--big-prompt", "1")
    plain, big = report["runs"]
    assert (plain["tokens"], plain["texts_per_token"], plain["errors"]) == (16 * 50, 1.0, {})
    assert (big["tokens"], big["big_prompt_mb"], big["errors"]) == (16 * 50 + 2, 1.0, {})
    assert plain["added_ms"]["p99"] > 0
    assert plain["capacity_tok_s"] > 0


def test_bench_serve_plays_workload_a_twice_on_one_engine() -> None:
    paced = ("--paced", "1", "--device", "cuda", "--model-shape", "qwen3-0.6b", "--dummy-weights")
    report, said = bench("serve", "--workload", "A", "--requests", "3", "--runs", "1", *paced)
    assert "pass 0: {" in said
    assert report["passes"][0]["errors"] == {}
    assert 0 < report["tok_s"] < 3000
    assert report["share_of_offline"] > 0
    assert report["ttft_ms"]["p50"] > 0
    assert set(report["cpu_us_per_token"]) == {"frontends", "tokenizers", "scheduler", "worker"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_bench_serve_kills_the_worker_and_says_what_that_cost(models: Path) -> None:
    small = ("--model", str(models / "dice-byte"), "--device", "cpu", "--threads", "1", "--kv-tokens", "8192", "--max-context", "2304")
    report, _ = bench("serve", "--workload", "A", "--requests", "2", "--frontends", "2", "--kill-worker", "kill,segv", *small, seconds=500)
    assert (report["faults"], report["same_tokens"], [death["how"] for death in report["kills"]]) == ([], 2, ["kill", "segv"])
    for death in report["kills"]:
        assert 0 < death["lost_s"] <= death["all_s"]
        assert {"noticed", "importing torch", "first token"} <= death["stages"].keys()  # others may be over before anybody has looked
        assert sum(death["stages"].values()) == pytest.approx(death["lost_s"], abs=0.01)


def test_workload_a_is_not_for_a_running_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--workload", "A", "--url", "http://127.0.0.1:1"]) == 2
    assert "leave --start, --url and --port out" in capsys.readouterr().err
