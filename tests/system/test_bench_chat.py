"""`launch.py bench chat` starts its own clusters, talks with them, compares, and leaves nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
LOAD = ["--users", "3", "--turns", "3", "--system-tokens", "200", "--user-tokens", "20", "--max-tokens", "8"]
ONE = ["--start-args", "--threads 1"]


@pytest.mark.timeout(240)
def test_prefix_cache_off_and_on(models: Path, run_dir: Path) -> None:
    command = [sys.executable, str(ROOT / "launch.py"), "bench", "chat", "--compare", "--model", str(models / "rand-byte"), "--json", *LOAD, *ONE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=os.environ | {"TMPDIR": str(run_dir)}, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    off, on = report["runs"]
    assert [(run["prefix_cache"], run["requests"], run["ok"], run["errors"]) for run in (off, on)] == [("off", 9, 9, {}), ("on", 9, 9, {})]
    assert off["cached_tokens"] == 0
    assert on["first"]["hit_rate"] > 0.2
    assert on["later"]["hit_rate"] > 0.7
    assert 150 < off["first"]["prompt_tokens"] / 3 < 350
    assert off["cold_start"]["ready_s"] > 0
    assert report["comparison"]["answers_compared"] == 9
    assert report["comparison"]["later_ttft_ratio"]["p50"] > 0
    assert "prefix cache on: 9 of 9 requests, 0 failed" in done.stderr
    assert list(run_dir.iterdir()) == []


@pytest.mark.timeout(120)
def test_sigterm_ends_the_private_cluster_too(models: Path, run_dir: Path) -> None:
    asked = ["--start", "--model", str(models / "rand-byte"), "--users", "3", "--turns", "1000", *ONE]
    command = [sys.executable, str(ROOT / "launch.py"), "bench", "chat", *asked]
    environment = os.environ | {"TMPDIR": str(run_dir)}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment) as bench:
        assert bench.stderr is not None
        for line in bench.stderr:
            if "private cluster: 0 of 3000 requests" in line:
                break
        [info] = run_dir.glob("*/*/info.json")
        supervisor = json.loads(info.read_bytes())["pid"]
        bench.terminate()
        assert "interrupted" in bench.stderr.read()
    assert bench.returncode == 130
    assert not psutil.pid_exists(supervisor)
    assert list(run_dir.iterdir()) == []
