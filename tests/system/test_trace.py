"""A traced cluster: its file loads, every step can be followed through the processes, and a death leaves it readable."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from launcher.trace_steps import read_steps
from launcher.trace_summary import summary
from tests.support.cluster import ROOT, Cluster, environment, running_cluster

REQUESTS, TOKENS = 4, 12
SMALL = ("--threads", "1", "--kv-tokens", "4096", "--max-context", "512")
LIMIT = 60.0


def complete(cluster: Cluster, prompt: str) -> dict[str, Any]:
    body = {"model": cluster.model, "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
    request = urllib.request.Request(f"{cluster.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT) as answer:
        found: dict[str, Any] = json.loads(answer.read())
        return found


def assert_nested(events: list[dict[str, Any]]) -> None:
    """Spans of a track lie in each other or follow each other, in whole nanoseconds: viewers drop others."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            begin = round(event["ts"] * 1000)
            tracks[event["pid"], event["tid"]].append((begin, -round(event["dur"] * 1000)))
    for spans in tracks.values():
        ends: list[int] = []
        for begin, length in sorted(spans):
            while ends and ends[-1] <= begin:
                ends.pop()
            assert not ends or begin - length <= ends[-1]
            ends.append(begin - length)


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name]


@pytest.mark.timeout(240)
def test_every_step_can_be_followed(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with running_cluster(models / "rand-byte", *SMALL, "--trace", str(path)) as cluster:
        for number in range(REQUESTS):
            assert complete(cluster, "abc" * (number + 1))["usage"]["completion_tokens"] == TOKENS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    events = json.loads(path.read_bytes())
    processes = {event["pid"]: event["args"]["name"] for event in named(events, "process_name")}
    assert sorted(processes.values()) == ["frontend0", "scheduler", "tokenizer0", "worker0"]
    tracks = {(event["pid"], event["tid"]) for event in named(events, "thread_name")}
    assert len({tid for _, tid in tracks}) == len(tracks)
    assert_nested(events)
    flows = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert (event["pid"], event["tid"]) in tracks
            assert event["dur"] >= 0
        if event.get("bind_id"):
            flows[event["bind_id"]].append(event)
    assert len(flows) >= REQUESTS * (TOKENS - 1)
    for steps in flows.values():
        steps.sort(key=lambda event: event["ts"])
        names = [event["name"] for event in steps]
        assert names[:2] == ["plan", "launch"]
        assert names[2] in {"prefill", "decode", "mixed"}
        assert names[3:] in (["result"], [])  # the last result may come after the end
        assert [bool(event.get("flow_in")) for event in steps] == [False, True, True, True][: len(steps)]
        assert [processes[event["pid"]] for event in steps] == ["scheduler", "worker0", "worker0", "scheduler"][: len(steps)]
        assert len({(event["args"]["session"], event["args"]["step"]) for event in steps}) == 1
    requests = [event for event in named(events, "request") if event["ph"] == "b"]
    assert [(event["args"]["tokens"], event["args"]["end"]) for event in requests] == [(TOKENS, "length")] * REQUESTS
    assert all(event["args"]["first_token_ms"] > 0 for event in requests)
    assert Counter(event["ph"] for event in named(events, "encode")) == {"b": REQUESTS, "e": REQUESTS}
    assert sum(event["args"]["rows"] for event in named(events, "detokenise")) == REQUESTS * TOKENS
    found = summary(read_steps(path), None)
    assert (found["damaged_lines"], found["most_rows"]) == (0, 1)
    assert found["stages"].keys() == {"plan", "queue", "launch", "wait", "device", "result"}
    command = [sys.executable, str(ROOT / "launch.py"), "trace", "summary", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "idle between decode steps" in done.stdout
    command = [sys.executable, str(ROOT / "launch.py"), "cluster", "start", "--model", str(models / "rand-byte"), "--port", "0", "--trace", str(path)]
    again = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment(tmp_path))
    assert again.returncode == 2
    assert "exists already, and a trace is never written over" in again.stderr


@pytest.mark.timeout(240)
def test_a_killed_worker_leaves_whole_lines(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with running_cluster(models / "rand-byte", *SMALL, "--trace", str(path)) as cluster:
        complete(cluster, "abc")
        worker = cluster.pid_of("worker0")
        limit = time.monotonic() + LIMIT
        while b'"decode"' not in path.read_bytes():
            assert time.monotonic() < limit
            time.sleep(0.05)
        os.kill(worker, signal.SIGKILL)
        while cluster.pids()["worker0"] in {0, worker} or not cluster.state().ready:
            assert time.monotonic() < limit
            time.sleep(0.05)
        complete(cluster, "abcd")
    events = json.loads(path.read_bytes())
    assert_nested(events)
    assert [event["args"]["name"] for event in named(events, "process_name")].count("worker0") == 2
    assert len({event["pid"] for event in named(events, "decode")}) == 2
    assert len({step.session for step in read_steps(path).steps}) == 2


@pytest.mark.timeout(120)
def test_a_trace_that_is_removed_does_not_matter(models: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    with running_cluster(models / "rand-byte", *SMALL, "--trace", str(folder / "t")) as cluster:
        (folder / "t").unlink()
        assert complete(cluster, "abc")["usage"]["completion_tokens"] == TOKENS
    assert list(folder.iterdir()) == []
