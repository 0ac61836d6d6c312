"""Requests seen and cancelled from outside while they run: over HTTP and in `cluster status`."""

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import ROOT, Cluster, environment, running_cluster
from tests.support.launch_paced import STEP_SECONDS
from tests.support.waiting import wait_until

LIMIT = 60.0


def call(cluster: Cluster, method: str, path: str, body: dict[str, Any] | None = None, name: str = "") -> tuple[int, bytes]:
    headers = {"Content-Type": "application/json", **({"X-Request-Id": name} if name else {})}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(cluster.url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def card(cluster: Cluster, name: str) -> Any:
    return json.loads(call(cluster, "GET", f"/v1/requests/{name}")[1])


def choice(cluster: Cluster, name: str) -> dict[str, Any]:
    """What the scheduler says of it; where that is slow to answer, a note says so, and it is asked again."""
    asked = (card(cluster, name) for _ in range(10))
    told: dict[str, Any] = next((found for found in asked if not found.get("note")), {})
    found: dict[str, Any] = told.get("choices", [{"state": "unknown"}])[0]
    return found


class Client(threading.Thread):
    """One completion; `answer` is (status, body) once it has ended."""

    def __init__(self, cluster: Cluster, name: str, **fields: Any) -> None:
        super().__init__(daemon=True)
        self._call = (cluster, "POST", "/v1/completions", {"model": cluster.model, "prompt": "ABC", "ignore_eos": True, **fields}, name)
        self.answer: tuple[int, bytes] = (0, b"")
        self.start()

    def run(self) -> None:
        self.answer = call(*self._call)

    def end(self) -> tuple[int, bytes]:
        self.join(LIMIT)
        assert not self.is_alive()
        return self.answer


def launch(cluster: Cluster, *arguments: str) -> tuple[int, str]:
    """Exit code and output of a command for clusters."""
    command = [sys.executable, str(ROOT / "launch.py"), "cluster", *arguments]
    done = subprocess.run(command, cwd=cluster.root, env=environment(cluster.root), capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def status(cluster: Cluster, *options: str) -> str:
    return launch(cluster, "status", *options)[1]


def test_requests_are_explained_and_cancelled(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are long run until they are cancelled, however long that takes: at this pace the first has 80 s to go."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv(STEP_SECONDS, "0.02")
    script = ROOT / "tests" / "support" / "launch_paced.py"
    with running_cluster(models / "dice-byte", "--max-slots", "1", "--hang-timeout", "0", script=script) as cluster:
        worker = cluster.pid_of("worker0")
        assert status(cluster).count("REQUEST") == 0
        first = Client(cluster, "first", stream=True, max_tokens=10_000)
        wait_until(lambda: choice(cluster, "first")["state"] == "decode")
        second = Client(cluster, "second", max_tokens=5, cache_salt="salt", priority=2)
        wait_until(lambda: choice(cluster, "second").get("waits_for") == "slot")
        wait_until(lambda: choice(cluster, "second").get("first_token_seconds") is not None)  # a step must have been measured
        os.kill(worker, signal.SIGSTOP)
        try:
            waiting, running = choice(cluster, "second"), choice(cluster, "first")
            assert (waiting["place"], waiting["priority"], waiting["prompt_tokens"], waiting["generated_tokens"]) == (1, 2, 4, 0)
            assert (waiting["waits_for"], waiting["first_token_seconds"] > 0) == ("slot", True)
            assert (running["state"], running["place"], running["prompt_tokens"]) == ("decode", None, 4)
            assert running["computed_tokens"] >= running["prompt_tokens"] + running["generated_tokens"]
            name = card(cluster, "second")["id"]
            line = next(line for line in status(cluster).splitlines() if line.startswith(name))
            assert line.split()[1:4] == ["waiting", "1", "slot"]
            assert [request["request_id"] for request in json.loads(status(cluster, "--json"))["requests"]] == ["second", "first"]
            assert json.loads(call(cluster, "DELETE", "/v1/requests/first")[1])["state"] == "cancelled"
        finally:
            os.kill(worker, signal.SIGCONT)
        answer = first.end()[1]
        assert b'"code":"cancelled"' in answer
        assert answer.endswith(b"data: [DONE]\n\n")
        assert second.end()[0] == 200
        wait_until(lambda: choice(cluster, "second")["state"] == "finished")
        done = card(cluster, name)["choices"][0]
        assert (done["reason"], done["generated_tokens"]) == ("length", 5)
        wait_until(lambda: [moment["what"] for moment in card(cluster, f"{name}?life=true")["choices"][0]["life"] or ()] == ["slot", "prefill"])
        assert call(cluster, "GET", "/v1/requests/third")[0] == 404
        crowd = [Client(cluster, f"crowd-{number}", max_tokens=10_000) for number in range(3)]
        wait_until(lambda: sorted(choice(cluster, f"crowd-{number}")["state"] for number in range(3)) == ["decode", "waiting", "waiting"])
        assert launch(cluster, "cancel", "crowd-0") == (0, f"{card(cluster, 'crowd-0')['id']}: cancelled\n")
        assert launch(cluster, "cancel", "--all") == (0, "cancelled 2 requests\n")
        assert [client.end()[0] for client in crowd] == [499] * 3
