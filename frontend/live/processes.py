"""The processes of the cluster as the page lists them."""

import time

import psutil

from frontend.live.frames import ProcessLine
from messages.cluster import DEAD, ClusterState, ProcessState

SHORTEST_SECONDS = 0.4
"""Between two reports: what is closer is the same one."""


class Processes:
    """Ask once a second: processor time is that since the last question."""

    def __init__(self) -> None:
        self._began: dict[tuple[str, int], float | None] = {}
        self._used: dict[str, tuple[float, float]] = {}

    def lines(self, state: ClusterState, now: float) -> list[ProcessLine]:
        """`now`: monotonic seconds."""
        self._used = {name: last for name, last in self._used.items() if any(name == process.name for process in state.processes)}
        known = {(process.name, process.pid) for process in state.processes}
        self._began = {who: began for who, began in self._began.items() if who in known}
        return [self._line(process, now) for process in state.processes]

    def _line(self, process: ProcessState, now: float) -> ProcessLine:
        began = None if process.phase == DEAD else self._start(process)
        return ProcessLine(
            name=process.name,
            phase=process.phase,
            detail=process.detail,
            pid=process.pid or None,
            uptime=None if began is None else max(0.0, time.time() - began),
            restarts=process.restarts,
            cpu=self._cpu(process, now),
            memory=process.memory_bytes,
        )

    def _start(self, process: ProcessState) -> float | None:
        who = process.name, process.pid
        if who not in self._began:
            self._began[who] = _started(process.pid)
        return self._began[who]

    def _cpu(self, process: ProcessState, now: float) -> float | None:
        """Cores between the last two reports that this has seen; None before the second, and after a death."""
        reported, used = now - process.age, process.cpu_seconds
        before = self._used.setdefault(process.name, (reported, used))
        if reported - before[0] < SHORTEST_SECONDS or used < before[1]:
            return None
        self._used[process.name] = reported, used
        return (used - before[1]) / (reported - before[0])


def _started(pid: int) -> float | None:
    try:
        return float(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError):
        return None
