"""launch.py as a person uses it: start, status, stop, signals, deaths, exit codes, and that nothing is left behind."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from launcher.rundir import is_live
from tests.support.cluster import ONE_THREAD, ROOT, Cluster, environment, running_cluster
from tests.support.processes import is_gone
from tests.support.waiting import wait_until

LIMIT = 60.0
TRIES = 5
NOT_READY = 3


def launch(root: Path, *arguments: str, seconds: float = 90.0) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(ROOT / "launch.py"), *arguments]
    return subprocess.run(
        command, cwd=root, env=environment(root), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False
    )


def get(url: str | urllib.request.Request) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(url, timeout=LIMIT) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def complete(cluster: Cluster, tokens: int = 4) -> str:
    """The text of a short completion, or the server's error."""
    body = {"model": cluster.model, "prompt": "A", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(f"{cluster.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    status, answer = get(request)
    return str(answer["choices"][0]["text"]) if status == 200 else f"{status} {answer['error']['message']}"


@contextlib.contextmanager
def client_stream(cluster: Cluster, tokens: int) -> Iterator[Any]:
    """A streaming request that has begun to answer."""
    body = {"model": cluster.model, "prompt": "A", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    request = urllib.request.Request(f"{cluster.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=LIMIT) as answer:
        assert answer.readline().startswith(b"data:")
        yield answer


def test_detached_start_status_stop(models: Path, run_dir: Path) -> None:
    started = launch(run_dir, "cluster", "start", "--detach", "--port", "0", "--model", str(models / "dice-byte"), "--served-model-name", "dice")
    assert started.returncode == 0, started.stderr
    try:
        info = json.loads(next(run_dir.glob("*/info.json")).read_text())
        assert info["url"] in started.stdout
        assert '"model": "dice"' in started.stdout
        assert f"cluster stop --port {info['port']}" in started.stdout
        assert Path(started.stdout.rpartition("log:")[2].strip()).is_file()

        for _ in range(TRIES):  # a process that the machine keeps waiting for seconds is not ready for a moment
            status = launch(run_dir, "cluster", "status", "--json")
            if status.returncode != NOT_READY:
                break
        assert status.returncode == 0, status.stderr
        report = json.loads(status.stdout)
        assert (report["ready"], report["phase"], report["model"], report["port"]) == (True, "ready", "dice", info["port"])
        assert {process["name"]: process["phase"] for process in report["processes"]} == dict.fromkeys(
            ["frontend0", "worker0", "tokenizer0", "scheduler"], "ready"
        )
        table = launch(run_dir, "cluster", "status", "--port", str(info["port"])).stdout
        assert "slots 0 of 64 in use, queue 0" in table
        assert "blocks 0 of" in table

        generated = launch(run_dir, "generate", "A", "--max-tokens", "5", "--temperature", "0", "--ignore-eos")
        assert generated.returncode == 0, generated.stderr
        assert generated.stdout == "aaaaa\n"

        twice = launch(run_dir, "cluster", "start", "--port", str(info["port"]), "--model", str(models / "dice-byte"))
        assert twice.returncode == 1
        assert f"cluster stop --port {info['port']}" in twice.stderr
    finally:
        stopped = launch(run_dir, "cluster", "stop")
    assert stopped.returncode == 0, stopped.stderr
    assert all(is_gone(pid) for pid in [info["pid"], *(process["pid"] for process in report["processes"])])
    assert [path.name for path in run_dir.iterdir()] == [".lock"]
    for action in ("status", "stop"):
        nothing = launch(run_dir, "cluster", action)
        assert nothing.returncode == 1
        assert "no cluster is running" in nothing.stderr
    assert json.loads(launch(run_dir, "cluster", "status", "--json").stdout) == {"running": False}


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=["term", "int", "hup"])
def test_a_detached_start_that_is_interrupted_leaves_nothing(models: Path, run_dir: Path, signum: signal.Signals) -> None:
    command = [sys.executable, str(ROOT / "launch.py"), "cluster", "start", "--detach", "--port", "0", "--model", str(models / "dice-byte")]
    with subprocess.Popen(command, cwd=run_dir, env=environment(run_dir), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert "starting" in process.stdout.readline()  # the supervisor runs and is followed
        process.send_signal(signum)
        process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    wait_until(lambda: not any(str(run_dir) in " ".join(other.info["cmdline"] or []) for other in psutil.process_iter(["cmdline"])))
    assert not list(run_dir.glob("*/*.sock"))


@pytest.mark.parametrize("detach", [False, True], ids=["foreground", "detached"])
def test_a_model_that_cannot_be_loaded_ends_the_start(models: Path, run_dir: Path, detach: bool) -> None:
    folder = run_dir / "broken"
    folder.mkdir()
    for file in (models / "dice-byte").iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(b"not safetensors")
    done = launch(run_dir, "cluster", "start", "--port", "0", "--model", str(folder), *(["--detach"] if detach else []))
    assert done.returncode == 1
    assert "worker0 ended while starting" in done.stderr
    assert "model.safetensors" in done.stderr.splitlines()[-1]
    assert not list(run_dir.glob("*/info.json"))
    if detach:
        assert next(run_dir.glob("failed-*.log")).is_file()


def ends_in_order(cluster: Cluster, signum: signal.Signals) -> None:
    """At this signal, while a request runs."""
    pids = cluster.pids().values()
    with client_stream(cluster, 100_000) as answer:
        cluster.process.send_signal(signum)
        rest = answer.read()
    assert cluster.process.wait(timeout=LIMIT) == 0, cluster.log()
    assert rest
    assert all(is_gone(pid) for pid in pids)
    assert not cluster.run_dir.exists()


def test_sigterm_ends_it_in_order_while_a_request_runs(models: Path) -> None:
    with running_cluster(models / "dice-byte", "--grace", "1", stop_check=False) as cluster:
        ends_in_order(cluster, signal.SIGTERM)


def test_a_killed_launcher_takes_everything_with_it(models: Path) -> None:
    with running_cluster(models / "dice-byte", stop_check=False) as cluster:
        pids = list(cluster.pids().values())
        cluster.process.kill()
        cluster.process.wait()
        wait_until(lambda: all(is_gone(pid) for pid in pids))
        assert cluster.run_dir.exists()
        assert not is_live(cluster.run_dir)
        again = launch(cluster.root, "cluster", "start", "--detach", "--port", str(cluster.port), "--model", str(models / "dice-byte"), *ONE_THREAD)
        assert again.returncode == 0, again.stderr
        assert not cluster.run_dir.exists()
        assert launch(cluster.root, "cluster", "stop").returncode == 0


@pytest.fixture(scope="module")
def lasting(models: Path) -> Iterator[Cluster]:
    """A cluster that comes through what is done to its processes; the last test ends it."""
    with running_cluster(models / "dice-byte", "--grace", "1", stop_check=False) as cluster:
        yield cluster


@pytest.mark.parametrize("names", [["worker0", "tokenizer0", "frontend0"], ["scheduler"]], ids=["worker-tokenizer-frontend", "scheduler"])
def test_a_killed_process_comes_back_and_the_cluster_serves_again(lasting: Cluster, names: list[str]) -> None:
    for name in names:
        lasting.kill(name)
        if name in ("tokenizer0", "scheduler"):
            assert complete(lasting) == "aaaa"  # it waits
        wait_until(lambda name=name: next(p for p in lasting.state().processes if p.name == name).incarnation == 2)  # type: ignore[misc]
        wait_until(lambda: lasting.state().ready)
        wait_until(lambda: get(f"{lasting.url}/health/ready")[0] == 200)
        wait_until(lambda: complete(lasting) == "aaaa")  # 503 with Retry-After until each process has seen the new state


def test_a_stopped_scheduler_turns_health_off_until_it_goes_on(lasting: Cluster) -> None:
    pid = lasting.pid_of("scheduler")
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    try:
        wait_until(lambda: get(f"{lasting.url}/health/ready")[0] == 503)
        assert time.monotonic() - began > 1.0
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: get(f"{lasting.url}/health/ready")[0] == 200)
    assert complete(lasting) == "aaaa"


def test_ctrl_c_ends_it_in_order_while_a_request_runs(lasting: Cluster) -> None:
    ends_in_order(lasting, signal.SIGINT)
