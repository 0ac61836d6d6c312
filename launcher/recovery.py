"""What a cluster went through while it ran: how its worker died, and how it came back."""

import re
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import zmq

from launcher.specs import WORKER_NAME
from messages.cluster import DEAD, READY, ClusterState, ProcessState
from transport.reports import CLUSTER_FEED
from transport.sockets import Subscription

LOOK_SECONDS = 0.002
ATTACHED = "attached"
_NUMBERS = re.compile(r"\s*\d+\s*%")


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The worker became something else, `at` seconds of time.perf_counter. `stage`: what it does, without how much of it."""

    at: float
    incarnation: int
    phase: str
    stage: str


class Watch:
    """Follows what the supervisor of the cluster in `folder` publishes, on a thread of its own, until `close`."""

    def __init__(self, folder: Path) -> None:
        self.moments: list[Moment] = []
        self.state: ClusterState | None = None
        self._folder = folder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        context: zmq.Context[Any] = zmq.Context()
        feed: Subscription[ClusterState] = Subscription(context, self._folder, CLUSTER_FEED, ClusterState)
        while not self._over.wait(LOOK_SECONDS):
            if (state := feed.latest()) is not None:
                self.state = state
                self._note(time.perf_counter())
        feed.close()
        context.term()

    def _note(self, now: float) -> None:
        worker = self.worker
        if worker is None:
            return
        stage = worker.phase if worker.phase == DEAD else _NUMBERS.sub("", worker.detail) or worker.phase
        last = self.moments[-1] if self.moments else None
        if last is None or (last.incarnation, last.phase, last.stage) != (worker.incarnation, worker.phase, stage):
            self.moments.append(Moment(at=now, incarnation=worker.incarnation, phase=worker.phase, stage=stage))

    @property
    def worker(self) -> ProcessState | None:
        """As it was last told."""
        state = self.state
        return None if state is None else next((process for process in state.processes if process.name == WORKER_NAME), None)

    @property
    def attached(self) -> bool:
        """The worker serves."""
        worker = self.worker
        return worker is not None and worker.phase == READY and worker.detail == ATTACHED

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def stages(moments: list[Moment], incarnation: int, killed: float) -> dict[str, float] | None:
    """Seconds between the death of this incarnation, at `killed`, and the moment when the next one is attached, by what they were for.

    None when it has not come back.
    """
    path = [moment for moment in moments if moment.at > killed and (moment.incarnation > incarnation or moment.phase == DEAD)]
    end = next((number for number, moment in enumerate(path) if moment.phase == READY and moment.stage == ATTACHED), None)
    if end is None:
        return None
    found = {"noticed": path[0].at - killed}
    for moment, following in pairwise(path[: end + 1]):
        found[moment.stage] = found.get(moment.stage, 0.0) + following.at - moment.at
    return found


def back(moments: list[Moment], incarnation: int) -> float | None:
    """When a later incarnation was attached; None when none was."""
    return next((moment.at for moment in moments if moment.incarnation > incarnation and moment.stage == ATTACHED), None)
