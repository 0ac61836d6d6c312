"""What the kernel says of another process: whether it is at work, though it may say nothing itself."""

import contextlib
import math
import os
from pathlib import Path

OVER, IDLE, BUSY = "over", "idle", "busy"
"""It was stopped or has ended; it sleeps; it has had a good part of a processor's time within the last second, or wants some."""
_OVER, _BUSY = frozenset("TtZXx"), frozenset("RD")
"""States of a thread. D: it waits for a disk, or memory."""
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
SHARE = 0.1
"""Of a processor's time: more than heartbeats alone take."""
FADES_SECONDS = 1.0
APART_SECONDS = 0.1
"""So long apart are the looks that are compared: who looks at every turn would see no two ticks between two of them."""


class Vitals:
    """Of the process `pid` of this machine, for who looks several times a second. Times are in seconds of any steady clock. `proc`: see proc(5)."""

    def __init__(self, pid: int, proc: Path = Path("/proc")) -> None:
        self.pid = pid
        self._tells = (proc / "self" / "stat").exists()
        self._proc = proc
        self._used = math.inf
        self._looked = self._busy_until = 0.0

    def look(self, now: float) -> str:
        """OVER, IDLE or BUSY; the last also where the kernel does not say."""
        if not self._tells:
            return BUSY
        states, used = self._states(), processor_seconds(self.pid, self._proc) or 0.0
        worked = used - self._used >= max(2 * TICK_SECONDS, SHARE * (now - self._looked))
        if now - self._looked >= APART_SECONDS:
            self._used, self._looked = used, now
        if states <= _OVER:
            self._busy_until = now
            return OVER
        if worked or states & _BUSY:
            self._busy_until = now + FADES_SECONDS
        return BUSY if now < self._busy_until else IDLE

    def _states(self) -> set[str]:
        """Of its threads; none when there is no such process."""
        try:
            threads = list((self._proc / str(self.pid) / "task").iterdir())
        except OSError:
            return set()
        return {fields[0] for thread in threads if (fields := _stat(thread))}


def processor_seconds(pid: int, proc: Path = Path("/proc")) -> float | None:
    """Of a processor's time, that a process has used so far, to TICK_SECONDS; None when there is no such process, or the kernel does not say."""
    fields = _stat(proc / str(pid))
    return (int(fields[11]) + int(fields[12])) * TICK_SECONDS if fields else None


def _stat(folder: Path) -> list[str]:
    """What follows the name in a `stat` file: the state first; nothing when it is over."""
    with contextlib.suppress(OSError):
        return (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []
