"""A process that tries programs, from the side of the tokenizer process."""

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from transport.vitals import processor_seconds

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 30.0
QUICK_SECONDS = 0.25
"""What nearly all forms need far less than, of the process's own time."""
TRIAL_SECONDS = 3.0
"""Of the process's own time, for one program."""
PATIENCE_SECONDS = 12.0
"""Of the clock's, where it gets so little of a core."""
LOOK_SECONDS = 0.02
ATTEMPTS = 2
"""With a program that ends the process: it may have been something else."""


class Answer(NamedTuple):
    """What is `wrong`, a sentence, empty when nothing is; and where (see `grammar.errors`)."""

    wrong: str = ""
    place: str = ""


class ChildError(Exception):
    """It could not be started: a sentence."""


class OverrunError(Exception):
    """A program took all the time there is, or what there is of memory: a sentence. `passing`: another time it might not."""

    def __init__(self, sentence: str, passing: bool) -> None:
        super().__init__(sentence)
        self.passing = passing


class PostponedError(Exception):
    """A program took longer than QUICK_SECONDS, and might not go on."""


class BusyError(Exception):
    """The machine has no time for a program."""


class GrammarChild:
    """Started when it is first asked. One thread's, which must live as long as it: the child ends with the thread that starts it."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._process: subprocess.Popen[bytes] | None = None
        self._rest = b""

    def ask(self, program: str, extend: Callable[[], bool] = lambda: True) -> Answer:
        """What is wrong with the program. `extend`: whether it may go on after QUICK_SECONDS. Raises ChildError,
        OverrunError, PostponedError and BusyError, within PATIENCE_SECONDS of a start."""
        for _ in range(ATTEMPTS):
            process = self._running()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(msgspec.json.encode(program) + b"\n")
                process.stdin.flush()
            watch = _Watch(process.pid)
            verdict = self._line(process, partial(watch.over, QUICK_SECONDS))
            if verdict is None and process.poll() is None and not watch.late and extend():
                verdict = self._line(process, partial(watch.over, TRIAL_SECONDS))
            if verdict is not None:
                return verdict
            ended = process.poll() is not None
            self.close()
            if not ended:
                raise watch.error()
        raise OverrunError("it is too complex: it takes too much memory to compile", passing=True)

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
        ends = time.monotonic() + START_SECONDS
        said = self._line(self._process, lambda: time.monotonic() > ends)
        if said is None or said.wrong:
            self.close()
            raise ChildError("it was not ready in time" if said is None else said.wrong)
        return self._process

    def _line(self, process: "subprocess.Popen[bytes]", over: Callable[[], bool]) -> Answer | None:
        """The next line; None when it ends, or says nothing until it is `over`."""
        assert process.stdout is not None
        while b"\n" not in self._rest:
            there, _, _ = select.select([process.stdout], [], [], LOOK_SECONDS)
            if there:
                part = os.read(process.stdout.fileno(), 1 << 16)
                if not part:
                    process.wait()
                    return None
                self._rest += part
            elif over():
                return None
        line, _, self._rest = self._rest.partition(b"\n")
        return msgspec.json.decode(line, type=Answer)

    def close(self) -> None:
        """End it."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()


class _Watch:
    """Over the time that a process takes from now on. `late`: more than PATIENCE_SECONDS have passed."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began, self._used = time.monotonic(), used_seconds(pid)
        self.late = False
        self._most = 0.0

    def over(self, most: float) -> bool:
        """It has used as many seconds, or the clock's are over."""
        self._most = most
        self.late = time.monotonic() - self._began > PATIENCE_SECONDS
        return self.late or used_seconds(self._pid) - self._used > most

    def error(self) -> Exception:
        """That it has."""
        if self.late:
            return BusyError()
        if self._most < TRIAL_SECONDS:
            return PostponedError()
        return OverrunError(f"it is too complex: it takes more than {TRIAL_SECONDS:g} s to compile", passing=False)


def used_seconds(pid: int) -> float:
    """Of a core, by a process; where the system does not say so as Linux does, the clock's."""
    used = processor_seconds(pid)
    return time.monotonic() if used is None else used
