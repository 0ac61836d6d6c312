"""Processes that compile the kernels a worker will need, while it imports, loads its weights and serves. No torch here: they start first."""

import contextlib
import hashlib
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from transport.lifetime import ARGUMENTS_VARIABLE
from worker.args import WorkerArgs

MOST = 8
LONGEST_SECONDS = 90.0
BEGUN = b"."
"""What each process writes when its share of the kernels of a first prompt and a first token is there, and when the others are."""


def compiled(args: WorkerArgs) -> Path:
    """The file that is there once everything was compiled for a worker with these arguments: the ones after it need no compilers."""
    same = msgspec.structs.replace(args, incarnation=0, death_fd=-1)
    return Path(args.run_dir) / f"compiled-{hashlib.sha256(msgspec.json.encode(same)).hexdigest()[:16]}"


class Compilers:
    """They fill Triton's cache on disk, in the order in which kernels will be needed. What they have not done the worker does itself."""

    def __init__(self, args: WorkerArgs) -> None:
        self._count = min(MOST, args.threads or len(os.sched_getaffinity(0)))
        environment = os.environ | {ARGUMENTS_VARIABLE: msgspec.json.encode(args).decode(), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-m", "worker.resident.rehearsal", str(self._count)]
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        self._heard = 0
        self._began = time.monotonic()

    def wait(self, seconds: float) -> None:
        """Until the kernels of a first prompt and a first token are there, `seconds` have passed, or the processes have ended."""
        pipe, ends = self._process.stdout, time.monotonic() + seconds
        assert pipe is not None
        while self._heard < self._count and (left := ends - time.monotonic()) > 0:
            if select.select([pipe], [], [], left)[0]:
                heard = os.read(pipe.fileno(), 4096)
                if not heard:
                    return
                self._heard += len(heard)

    def ended(self, seconds: float) -> bool:
        """Wait up to `seconds` for them to end; True when they have, or have taken so long that nobody should wait any more."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None or time.monotonic() - self._began > LONGEST_SECONDS

    def close(self) -> None:
        """End them."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
