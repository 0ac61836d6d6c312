"""A process that tries programs, from the side of the tokenizer process."""

import contextlib
import os
import select
import subprocess
import sys
import time
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 30.0
TRIAL_SECONDS = 5.0
ATTEMPTS = 2
"""With a program that ends the process: it may have been something else."""


class ChildError(Exception):
    """It could not be started: a sentence."""


class OverrunError(Exception):
    """A program took all the time there is, or what there is of memory: a sentence. Another time it might not."""


class GrammarChild:
    """Started when it is first asked. One thread's, which must live as long as it: the child ends with the thread that starts it."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def ask(self, program: str) -> str:
        """What is wrong with the program, a sentence; empty: nothing. Raises ChildError, and OverrunError within TRIAL_SECONDS of a start."""
        for _ in range(ATTEMPTS):
            process = self._running()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(program) + b"\n")
                process.stdin.flush()
            verdict = self._line(process, TRIAL_SECONDS)
            if verdict is not None:
                return verdict
            ended = process.poll() is not None
            self.close()
            if not ended:
                raise OverrunError(f"it is too complex: it takes more than {TRIAL_SECONDS:g} s to compile")
        raise OverrunError("it is too complex: it takes too much memory to compile")

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is not None:  # somebody ended it while it had nothing to do
            self.close()
        return self._process or self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", "-m", "grammar", str(self._run_dir)]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)})
        except OSError as error:
            raise ChildError(f"it cannot be started: {error.strerror}") from error
        self._rest = b""
        said = self._line(self._process, START_SECONDS)
        if said != "":
            self.close()
            raise ChildError(said or "it was not ready in time")
        return self._process

    def _line(self, process: "subprocess.Popen[bytes]", seconds: float) -> str | None:
        """The next line; None when it ends or says nothing for so long."""
        assert process.stdout is not None
        ends = time.monotonic() + seconds
        while b"\n" not in self._rest:
            there, _, _ = select.select([process.stdout], [], [], max(0.0, ends - time.monotonic()))
            if not there:
                return None
            part = os.read(process.stdout.fileno(), 1 << 16)
            if not part:
                process.wait()
                return None
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return msgspec.json.decode(line, type=str)

    def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()
