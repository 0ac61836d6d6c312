"""A private cluster for `bench serve --start` and `bench chat`: started through launch.py, timed up to its first token, stopped at the end."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from launcher.errors import APP_ROOT, LauncherError
from launcher.rundir import INFO
from launcher.security import key_headers

POLL_SECONDS = 0.02
START_SECONDS = 1800.0
STOP_SECONDS = 30.0
SHOWN_CHARACTERS = 2000


class ColdCluster:
    """`with ColdCluster(arguments) as cluster`: a foreground `cluster start` in a run directory of its own. `arguments` are that command's.

    Within the block SIGTERM and SIGHUP do what Ctrl-C does, so that the cluster does not outlive this command.
    For the main thread only.
    """

    def __init__(self, arguments: list[str]) -> None:
        self._root = Path(tempfile.mkdtemp(prefix="pagewire-"))
        self._log = self._root / "start.log"
        self._began = time.perf_counter()
        command = [sys.executable, str(APP_ROOT / "launch.py"), "cluster", "start", "--host", "127.0.0.1", "--port", "0", *arguments]
        with self._log.open("wb") as log:
            environment = os.environ | {"PAGEWIRE_RUN_DIR": str(self._root)}
            self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    @property
    def url(self) -> str:
        """The cluster's address. Waits until there is one; raises LauncherError when the cluster ends before."""
        while not (found := list(self._root.glob(f"*/{INFO}"))):
            self._tick()
        url: str = json.loads(found[0].read_bytes())["url"]
        return url

    @property
    def folder(self) -> Path:
        """Its run directory, once there is a `url`."""
        return next(self._root.glob(f"*/{INFO}")).parent

    def wait(self, condition: Callable[[], bool]) -> None:
        """Until it holds. Raises LauncherError when the cluster ends before."""
        while not condition():
            self._tick()

    def log(self) -> str:
        """What its processes have written."""
        return self._log.read_text(errors="replace")

    def measure(self) -> dict[str, float]:
        """Seconds from the start of the command to readiness and to the first token of a chat. Raises LauncherError."""
        url = self.url
        while not _is_ready(url):
            self._tick()
        ready = time.perf_counter() - self._began
        body = {"prompt": "Hello", "max_tokens": 1, "temperature": 0, "ignore_eos": True}
        request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json", **key_headers()})
        try:
            with _opener().open(request, timeout=START_SECONDS) as response:
                response.read()
        except OSError as error:
            raise LauncherError(f"the first request failed: {error}") from error
        return {"ready_s": round(ready, 3), "first_token_s": round(time.perf_counter() - self._began, 3)}

    def _tick(self) -> None:
        if self._process.poll() is not None:
            raise LauncherError(f"the cluster did not start:\n{self._log.read_text(errors='replace').strip()[-SHOWN_CHARACTERS:]}")
        if time.perf_counter() - self._began > START_SECONDS:
            raise LauncherError(f"the cluster was not ready after {START_SECONDS:.0f} s")
        time.sleep(POLL_SECONDS)

    def __enter__(self) -> "ColdCluster":
        self._handlers = {signum: signal.signal(signum, _as_ctrl_c) for signum in (signal.SIGTERM, signal.SIGHUP)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)
        shutil.rmtree(self._root, ignore_errors=True)


def _as_ctrl_c(signum: int, frame: object) -> None:
    """An event loop takes that as a cancellation. An exception might be raised where it is only printed: in a callback of the collector, say."""
    signal.raise_signal(signal.SIGINT)


def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _is_ready(url: str) -> bool:
    with contextlib.suppress(OSError), _opener().open(f"{url}/health/ready", timeout=5) as response:
        return bool(response.status == 200)
    return False
