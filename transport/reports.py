"""Heartbeats of a process to the supervisor, from a thread of their own so that a long step does not look like death."""

import os
import resource
import threading
import time
from collections.abc import Callable

import zmq

from messages.cluster import STARTING, ProcessReport
from transport.lifetime import ProcessArgs
from transport.sockets import Outbox

SUPERVISOR = "supervisor"
CLUSTER_FEED = "cluster"
HEARTBEAT_SECONDS = 0.5

Numbers = dict[str, float]


class Reporter:
    """Sends ProcessReports. `phase()` reports at once; `gauges` and `counters` are replaced whole by `numbers()` and go out with each heartbeat.

    `alive` is asked before every heartbeat: when it gives False the heartbeat is left out (a stuck main loop looks stuck).
    """

    def __init__(self, args: ProcessArgs, alive: Callable[[], bool] = lambda: True) -> None:
        self._args = args
        self._alive = alive
        self._phase: tuple[str, str, float | None] = (STARTING, "", None)
        self._gauges: Numbers = {}
        self._counters: Numbers = {}
        self._facts: dict[str, int | float | str] = {}
        self._changed = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)
        self._thread.start()

    def phase(self, phase: str, detail: str = "", progress: float | None = None) -> None:
        """`progress` is 0..1 within the phase."""
        self._phase = (phase, detail, progress)
        self._changed.set()

    def hurry(self) -> None:
        """Report now, without a change of phase."""
        self._changed.set()

    def facts(self, **facts: int | float | str) -> None:
        self._facts = facts
        self._changed.set()

    def numbers(self, gauges: Numbers, counters: Numbers) -> None:
        self._gauges, self._counters = gauges, counters

    def close(self) -> None:
        """Send the last report and end the thread."""
        self._closed = True
        self._changed.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        outbox = Outbox(context, self._args.run_dir, SUPERVISOR, linger_ms=200)
        while not self._closed:
            if self._changed.wait(HEARTBEAT_SECONDS) or self._alive():
                self._changed.clear()
                outbox.send(self._report())
        outbox.send(self._report())
        outbox.close()
        context.term()

    def _report(self) -> ProcessReport:
        phase, detail, progress = self._phase
        return ProcessReport(
            name=self._args.name,
            incarnation=self._args.incarnation,
            pid=os.getpid(),
            phase=phase,
            detail=detail,
            progress=progress,
            gauges=self._gauges,
            counters=self._counters,
            facts=self._facts,
            cpu_seconds=time.process_time(),
            memory_bytes=_memory(),
        )


def _memory() -> int:
    """Bytes of this process in memory; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0
