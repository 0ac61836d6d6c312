"""One supervised process: starting it, reading what it writes, ending it, remembering its deaths."""

import collections
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO

import msgspec

from launcher.errors import APP_ROOT
from launcher.specs import ProcessSpec
from messages.cluster import DEAD, LOADING, READY, STALLED, STARTING, STOPPING, ProcessReport, ProcessState
from transport.lifetime import ARGUMENTS_VARIABLE

TAIL_LINES = 40
LINE_BYTES = 16_384
SILENCE_SECONDS = 3.0
LAST_SECONDS = 5.0
"""For a process that has said why it ends: taking itself down in order may take a while."""
DEATH_WINDOW_SECONDS = 60.0
MAX_FAILED_STARTS = 5
MAX_DEATHS = 20
"""In DEATH_WINDOW_SECONDS, of a process that was ready: more than the scheduler needs to tell which request ends the worker."""
STARTS = 2.0
LOG_PREFIX = re.compile(r"^\d\d:\d\d:\d\d [A-Z] \S+\s+")
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, LONGEST_START_PAUSE_SECONDS = 0.2, 1.0, 5.0

OnLine = Callable[[str], None]


def describe_exit(code: int) -> str:
    """'exit code 1' or 'killed by SIGKILL' for a return code as subprocess gives it."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


class Child:
    """The current run of one ProcessSpec and its history. Times are seconds of `clock`.

    `tail` holds the last lines the process wrote; `moved` is when it was started, or has last reported something new of how far it is.
    Start children from the main thread: the kernel's parent-death signal follows the thread.
    """

    def __init__(self, spec: ProcessSpec, on_line: OnLine, clock: Callable[[], float] = time.monotonic) -> None:
        self.spec = spec
        self.incarnation = 0
        self.tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self.restart_at: float | None = None
        self.last_exit = ""
        self.leave_seconds: float | None = None
        self._retired = False
        self._on_line = on_line
        self._clock = clock
        self._process: subprocess.Popen[bytes] | None = None
        self._pump: threading.Thread | None = None
        self._report: ProcessReport | None = None
        self._past: dict[str, float] = {}
        self._past_cpu = 0.0
        self._heard = self._begun = self.moved = 0.0
        self._dying: float | None = None
        self._was_ready = False
        self._start_took: float | None = None
        self._deaths: collections.deque[float] = collections.deque()
        self._failed_starts = 0

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def ready(self) -> bool:
        """It runs, and its last report says so."""
        return self.running and self._report is not None and self._report.phase == READY

    def become(self, spec: ProcessSpec) -> None:
        """Be this from the next start on, of which nothing is known yet."""
        self.spec, self._start_took = spec, None

    def start(self, death_fd: int) -> None:
        """Spawn the next incarnation; `death_fd` is the read end of the supervisor's death pipe."""
        self.incarnation += 1
        args = msgspec.structs.replace(self.spec.args, incarnation=self.incarnation, death_fd=death_fd)
        environment = os.environ | {"PYTHONPATH": str(APP_ROOT), ARGUMENTS_VARIABLE: msgspec.json.encode(args).decode()}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", self.spec.package],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(death_fd, *self.spec.descriptors),
            start_new_session=True,
        )
        self._bury()
        self._report, self.restart_at, self._was_ready = None, None, False
        self._retired, self.leave_seconds, self._dying = False, None, None
        self._heard = self._begun = self.moved = self._clock()
        self.tail.clear()
        self._pump = threading.Thread(target=self._read_lines, args=(self._process.stdout,), name=f"lines-{self.name}", daemon=True)
        self._pump.start()

    def _bury(self) -> None:
        """Keep what the last incarnation has counted."""
        last, past = self._report, self._past
        if last is not None:
            self._past = {name: past.get(name, 0.0) + last.counters.get(name, 0.0) for name in {**past, **last.counters}}
            self._past_cpu += last.cpu_seconds

    def _read_lines(self, pipe: IO[bytes]) -> None:
        with pipe:
            while line := pipe.readline(LINE_BYTES):
                text = line.decode(errors="replace").rstrip()
                self.tail.append(text)
                self._on_line(text)

    def note(self, report: ProcessReport) -> bool:
        """Take in a report; True when it changes more than numbers. Reports of earlier incarnations are ignored."""
        if report.incarnation != self.incarnation or not self.running:
            return False
        before, self._report, self._heard = self._report, report, self._clock()
        if before is None or (before.phase, before.detail, before.progress) != (report.phase, report.detail, report.progress):
            self.moved = self._heard
        if report.phase == READY and not self._was_ready:
            self._was_ready, self._start_took = True, self._heard - self._begun
        if report.phase == DEAD and self._dying is None:
            self._dying = self._heard
        return before is None or (before.phase, before.detail, before.facts) != (report.phase, report.detail, report.facts)

    def reap(self, now: float) -> bool:
        """True when the process has just been found dead; `last_exit` and `tail` say how it ended."""
        if self._process is None or (code := self._process.poll()) is None:
            return False
        if self._pump is not None:
            self._pump.join(timeout=1.0)
        self._process, self._pump = None, None
        self.last_exit = describe_exit(code)
        if self._retired:
            return True
        self._failed_starts = 0 if self._was_ready else self._failed_starts + 1
        if self._was_ready:
            self._deaths.append(now)
        while self._deaths and self._deaths[0] < now - DEATH_WINDOW_SECONDS:
            self._deaths.popleft()
        return True

    @property
    def hopeless(self) -> bool:
        """It died in too many starts one after the other, or too often once it was ready."""
        return self._failed_starts >= MAX_FAILED_STARTS or len(self._deaths) >= MAX_DEATHS

    def schedule_restart(self, now: float) -> float:
        """Decide when to start it again; returns the pause in seconds, doubling with each recent death."""
        if self._was_ready:
            pause = min(FIRST_PAUSE_SECONDS * 2.0 ** (len(self._deaths) - 1), LONGEST_PAUSE_SECONDS)
        else:
            pause = min(FIRST_PAUSE_SECONDS * 2.0**self._failed_starts, LONGEST_START_PAUSE_SECONDS)
        self.restart_at = now + pause
        return pause

    def retire(self) -> None:
        """End it, which is no death; it is not started again by itself."""
        self._retired, self.restart_at = True, None
        self.terminate()

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """SIGKILL it with everything it started itself."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def kill_if_hung(self, now: float, limit: float) -> bool:
        """SIGKILL it when it has been silent for more than `limit` seconds; True when that was done.

        While it starts it has as much time more as STARTS of its last starts took, and in the first one all time: a load may be silent.
        """
        if not self._was_ready:
            if self._start_took is None:
                return False
            limit += STARTS * self._start_took
        if not self.running or now - self._heard <= limit:
            return False
        self._heard = now
        self.kill()
        return True

    def kill_incarnation(self, incarnation: int) -> bool:
        """SIGKILL it when it runs and is this incarnation, unless it has said why it ends; True when that was done."""
        if not self.running or incarnation != self.incarnation or self._dying is not None:
            return False
        self.kill()
        return True

    def kill_if_lingering(self, now: float) -> bool:
        """SIGKILL it when it has said why it ends and does not end; True when that was done."""
        if not self.running or self._dying is None or now - self._dying <= LAST_SECONDS:
            return False
        self._dying = now
        self.kill()
        return True

    def kill_if_stuck(self, now: float, limit: float) -> bool:
        """SIGKILL it when it runs, is not ready and has not moved for `limit` seconds; True when that was done."""
        if not self.running or self.ready or now - self.moved <= limit:
            return False
        self.moved = now
        self.kill()
        return True

    @property
    def doing(self) -> str:
        """Its name and how far it is: 'worker0 loading weights 43 %'."""
        report = self._report
        return f"{self.name} {STARTING if report is None else report.detail or report.phase}"

    @property
    def cause(self) -> str:
        """Why it died in its own words: what it reported as dead, else the last line it wrote without the log's prefix."""
        if self._report is not None and self._report.phase == DEAD and self._report.detail:
            return self._report.detail
        line = next((text for text in reversed(self.tail) if text.strip()), "it wrote nothing")
        return LOG_PREFIX.sub("", line)

    def state(self, now: float, stopping: bool) -> ProcessState:
        """How this process looks from here. Silence of more than SILENCE_SECONDS turns READY into STALLED."""
        report, phase, age = self._report, STARTING, max(0.0, now - self._heard)
        if self._process is None:
            phase = DEAD
        elif stopping:
            phase = STOPPING
        elif report is not None:
            phase = STALLED if report.phase == READY and age > SILENCE_SECONDS else report.phase
        return ProcessState(
            name=self.name,
            incarnation=self.incarnation,
            pid=self._process.pid if self._process is not None else 0,
            phase=phase,
            detail=self._detail(now, phase, age),
            progress=report.progress if report is not None and phase in {STARTING, LOADING} else None,
            age=round(age, 3),
            restarts=max(0, self.incarnation - 1),
            gauges=report.gauges if report is not None else {},
            counters=report.counters if report is not None else {},
            facts=report.facts if report is not None else {},
            cpu_seconds=self._past_cpu + (report.cpu_seconds if report is not None else 0.0),
            memory_bytes=report.memory_bytes if report is not None else 0,
            past=self._past,
            leave_seconds=self.leave_seconds,
        )

    def _detail(self, now: float, phase: str, age: float) -> str:
        if phase == DEAD:
            again = "" if self.restart_at is None else f", starts again in {max(0.0, self.restart_at - now):.1f} s"
            return f"{self.last_exit or 'not started'}{again}"
        if phase == STALLED and age > SILENCE_SECONDS:
            return f"not heard from for {age:.1f} s"
        return self._report.detail if self._report is not None else ""
