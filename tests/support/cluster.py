"""A whole cluster for a test: started through launch.py in a run directory of its own, ended and checked for leftovers."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from launcher.rundir import ClusterInfo
from messages.cluster import ClusterState, Command, StatusQuery
from transport.command import ask

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
STOP_SECONDS = 60.0
ANSWER_SECONDS = 30.0
"""For the supervisor: people's commands give up sooner."""
ONE_THREAD = ("--threads", "1")
"""A worker's threads wait for each other by turning: on cores that others use too, a tiny model takes many times longer with two."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """`url` is the base URL (no /v1), `model` the served name, `run_dir` its folder with the sockets, `root` the PAGEWIRE_RUN_DIR it is in.

    `pid` is launch.py's, `process` its Popen; `log_file` holds everything the processes wrote.
    """

    url: str
    model: str
    port: int
    pid: int
    run_dir: Path
    root: Path
    process: "subprocess.Popen[bytes]"
    log_file: Path

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def state(self) -> ClusterState:
        """The supervisor's view now."""
        return self.command(StatusQuery())

    def command(self, command: Command) -> ClusterState:
        """The state after a command, which must not be declined."""
        answer = ask(self.run_dir, command, ANSWER_SECONDS)
        assert isinstance(answer, ClusterState), answer
        return answer

    def pids(self) -> dict[str, int]:
        """Process ids by name (frontend0, tokenizer0, scheduler, worker0)."""
        return {process.name: process.pid for process in self.state().processes}

    def pid_of(self, name: str) -> int:
        """Of the process of this name, which is waited for while it is away: its number is 0 then, and a signal to 0 would end the tests too."""
        limit = time.monotonic() + START_SECONDS
        while not (pid := self.pids()[name]):
            assert time.monotonic() < limit, f"{name} has not come back"
            time.sleep(0.02)
        return pid

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """Send this signal to the process of this name."""
        os.kill(self.pid_of(name), how)

    def info(self) -> ClusterInfo:
        """As far as commands need it."""
        return ClusterInfo(pid=self.pid, host="127.0.0.1", port=self.port, url=self.url, model=self.model, started=0.0)


def environment(root: Path) -> dict[str, str]:
    """The environment of a launch.py whose run directories are in `root`."""
    return os.environ | {"PAGEWIRE_RUN_DIR": str(root)}


@contextlib.contextmanager
def running_cluster(
    model: str | Path, *options: str, start_seconds: float = START_SECONDS, stop_check: bool = True, script: Path = ROOT / "launch.py"
) -> Iterator[Cluster]:
    """A ready cluster serving `model` on a free port; `options` are those of `cluster start` (`--threads 1` unless they say otherwise),
    `script` is what is run.

    At the end it is stopped with SIGTERM and must exit 0 and leave no process and no run directory (`stop_check` False: the test ends it itself).
    """
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        root = Path(folder)
        command = [sys.executable, str(script), "cluster", "start", "--model", str(model), "--port", "0", *ONE_THREAD, *options]
        log_file = root / "launch.log"
        with log_file.open("wb") as log:
            process = subprocess.Popen(command, cwd=root, env=environment(root), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            cluster = _wait_ready(process, root, log_file, start_seconds)
            yield cluster
            if stop_check:
                _stop_and_check(cluster)
        finally:
            _end(process)


def _wait_ready(process: "subprocess.Popen[bytes]", root: Path, log_file: Path, seconds: float) -> Cluster:
    limit = time.monotonic() + seconds
    while "Pagewire is ready" not in log_file.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > limit:
            raise AssertionError(f"the cluster did not become ready (exit code {process.poll()}):\n{log_file.read_text(errors='replace')}")
        time.sleep(0.05)
    info_file = next(root.glob("*/info.json"))
    info = msgspec.json.decode(info_file.read_bytes(), type=ClusterInfo)
    return Cluster(
        url=info.url, model=info.model, port=info.port, pid=process.pid, run_dir=info_file.parent, root=root, process=process, log_file=log_file
    )


def _stop_and_check(cluster: Cluster) -> None:
    if cluster.process.poll() is not None:
        raise AssertionError(f"the cluster ended by itself with exit code {cluster.process.returncode}:\n{cluster.log()}")
    pids = cluster.pids().values()
    cluster.process.send_signal(signal.SIGTERM)
    code = cluster.process.wait(timeout=STOP_SECONDS)
    assert code == 0, f"exit code {code} after SIGTERM:\n{cluster.log()}"
    assert not [pid for pid in pids if psutil.pid_exists(pid)], "processes left"
    assert not cluster.run_dir.exists(), "run directory left"


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=STOP_SECONDS)
    if process.poll() is None:
        process.kill()
        process.wait()
