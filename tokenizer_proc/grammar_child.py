"""A process that tries programs, from the side of the tokenizer process."""

import os
import select
import subprocess
import sys
import time
from pathlib import Path

import msgspec

START_SECONDS = 30.0
TRIAL_SECONDS = 5.0


class ChildError(Exception):
    """It could not be started: a sentence."""


class GrammarChild:
    """Started when it is first asked. One thread's, which must live as long as it: the child ends with the thread that starts it."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def ask(self, program: str) -> str:
        """What is wrong with the program, a sentence; empty: nothing. Comes back within TRIAL_SECONDS of a start. Raises ChildError."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(msgspec.json.encode(program) + b"\n")
            process.stdin.flush()
            verdict = self._line(process, TRIAL_SECONDS)
        except BrokenPipeError:
            verdict = None
        if verdict is not None:
            return verdict
        ended = process.poll() is not None
        self.close()
        return "it takes too much memory" if ended else f"it is too complex: it takes more than {TRIAL_SECONDS:g} s to compile"

    def _start(self) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-P", "-m", "grammar", str(self._run_dir)]
        try:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise ChildError(f"it cannot be started: {error.strerror}") from error
        self._rest = b""
        said = self._line(self._process, START_SECONDS)
        if said != "":
            self.close()
            raise ChildError(said or f"it was not ready within {START_SECONDS:g} s")
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
