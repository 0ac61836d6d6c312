"""A private cluster for one `LLM`: started through launch.py in a run directory of its own, stopped with its owner."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from pagewire.client import Server
from pagewire.paths import app_root

START_SECONDS = 1800.0
STOP_SECONDS = 60.0
SHOWN_CHARACTERS = 4000


class PrivateCluster:
    """A running cluster that nobody else's `launch.py cluster ...` sees; `server` is how it is reached."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """`arguments` are those of `cluster start`. Returns when the cluster is ready; raises RuntimeError with its last words when it fails."""
        self._root = tempfile.mkdtemp(prefix="pagewire-")
        try:
            done = self._launch("start", "--detach", "--host", "127.0.0.1", "--port", "0", *arguments, seconds=START_SECONDS)
            if done.returncode:
                raise RuntimeError(f"the cluster did not start (exit {done.returncode}):\n{done.stderr.strip()[-SHOWN_CHARACTERS:]}")
            self.server = server_below(Path(self._root))
        except BaseException:
            self.close()
            raise

    def _launch(self, *arguments: str, seconds: float) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(app_root() / "launch.py"), "cluster", *arguments]
        environment = os.environ | {"PAGEWIRE_RUN_DIR": self._root}
        return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds, check=False)

    def close(self) -> None:
        """Stop every process and remove the run directory. A second call does nothing."""
        if os.path.isdir(self._root):
            try:
                self._launch("stop", seconds=STOP_SECONDS)  # nothing to stop is fine
            finally:
                shutil.rmtree(self._root, ignore_errors=True)


def server_below(root: Path) -> Server:
    """The one whose run directory is in `root`, with the key and the certificate that it needs. Raises RuntimeError when there is none."""
    for info in root.glob("*/info.json"):
        key = info.with_name("key")
        told = json.loads(info.read_bytes())
        return Server(told["url"], key.read_text("ascii") if key.exists() else None, told.get("tls_cert"))
    raise RuntimeError(f"the cluster started but left no info.json below {root}")
