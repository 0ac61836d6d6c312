"""Real processes of a cluster for a benchmark, watched from within its own process instead of by a supervisor."""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import zmq

from launcher.child import Child
from launcher.errors import LauncherError
from launcher.specs import ProcessSpec
from messages.cluster import DEAD, LOADING, READY, ClusterState, ProcessReport
from transport.reports import CLUSTER_FEED, SUPERVISOR
from transport.sockets import Feed, Inbox

WAIT_SECONDS = 0.05
PUBLISH_SECONDS = 0.2
STOP_SECONDS = 10.0
SHOWN_LINES = 20


class Stand:
    """`with stand:` its processes are ready. For the main thread only. Raises LauncherError when one of them ends.

    `folder` is its run directory. A subclass gives the processes in `specs`, which is called once, when the sockets are there. They are told the
    state of the cluster as often as `watch` is called, at most five times a second. `trace`: a file that
    launcher.tracing has made.
    """

    def __init__(self, startup_timeout: float = 600.0, trace: str | None = None) -> None:
        self._trace = trace
        self.folder = Path(tempfile.mkdtemp(prefix="pagewire-"))
        self.log: list[str] = []
        self.start_seconds = 0.0
        self._startup_timeout = startup_timeout
        self._children: dict[str, Child] = {}
        self._reports: dict[str, ProcessReport] = {}
        self._published = 0.0

    def specs(self) -> Sequence[ProcessSpec]:
        """The processes, in the order of their start."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.context: zmq.Context[Any] = zmq.Context()
        self._supervisor: Inbox[ProcessReport] = Inbox(self.context, self.folder, SUPERVISOR, ProcessReport)
        self._feed = Feed(self.context, self.folder, CLUSTER_FEED)
        self._death = os.pipe()
        self.open()
        began = time.perf_counter()
        try:
            self._children = {spec.name: Child(spec, self.log.append) for spec in self.specs()}
            for child in self._children.values():
                child.start(self._death[0])
            while not self.ready:
                self.watch(WAIT_SECONDS)
                if time.perf_counter() - began > self._startup_timeout:
                    raise LauncherError(f"the processes were not ready after {self._startup_timeout:.0f} s")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        self.start_seconds = time.perf_counter() - began
        return self

    def open(self) -> None:
        """Make the sockets of one's own."""

    def close(self) -> None:
        """Close them."""

    @property
    def ready(self) -> bool:
        """Every process says so."""
        return all(name in self._reports and self._reports[name].phase == READY for name in self._children)

    def pid(self, name: str) -> int:
        """Of the process of that name, which has reported."""
        return self._reports[name].pid

    def common(self, name: str) -> dict[str, Any]:
        """The arguments that every process has."""
        return {"name": name, "incarnation": 0, "run_dir": str(self.folder), "trace": self._trace}

    def facts_of(self, name: str) -> dict[str, int | float | str]:
        """What the process of that name has reported as fixed."""
        return self._reports[name].facts

    def gauges_of(self, name: str) -> dict[str, float]:
        """The numbers that the process last reported."""
        return self._reports[name].gauges

    def counters_of(self, name: str) -> dict[str, float]:
        """As `gauges_of`, those that only rise."""
        return self._reports[name].counters

    def watch(self, seconds: float) -> None:
        """Take in reports for so long, tell the state, and see whether the processes still live."""
        self._supervisor.wait(seconds)
        for report in self._supervisor.drain():
            self._reports[report.name] = report
            self._children[report.name].note(report)
        now = time.monotonic()
        if now - self._published >= PUBLISH_SECONDS:
            self._published = now
            self._publish(now)
        for name, child in self._children.items():
            if child.reap(now):
                said = self._reports.get(name)
                why = said.detail if said is not None and said.phase == DEAD else child.cause
                raise LauncherError("\n".join([f"{name} ended ({child.last_exit}): {why}", *list(child.tail)[-SHOWN_LINES:]]))

    def beat(self) -> None:
        """For a loop of one's own: `watch` without waiting, when it is time to tell the state again."""
        if time.monotonic() - self._published >= PUBLISH_SECONDS:
            self.watch(0)

    def _publish(self, now: float) -> None:
        processes = [child.state(now, False) for child in self._children.values()]
        phase = READY if self.ready else LOADING
        self._feed.publish(ClusterState(ready=self.ready, phase=phase, reason="", model="", started=0.0, processes=processes))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        ends = time.monotonic() + STOP_SECONDS
        for child in self._children.values():
            child.terminate()
        while any(child.running for child in self._children.values()):
            if time.monotonic() > ends:
                for child in self._children.values():
                    child.kill()
            for child in self._children.values():
                child.reap(time.monotonic())
            time.sleep(WAIT_SECONDS)
        self.close()
        self._supervisor.close()
        self._feed.close()
        self.context.term()
        for end in self._death:
            os.close(end)
        shutil.rmtree(self.folder, ignore_errors=True)
