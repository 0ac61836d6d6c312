"""Ending the processes of a cluster in order."""

import logging
from collections.abc import Iterable

from launcher.child import Child

log = logging.getLogger(__name__)

STAGE_SECONDS = 5.0


class Ending:
    """`advance` it until nothing runs: stage after stage gets SIGTERM, and SIGKILL when its time is up: `seconds` for the first, STAGE_SECONDS then.

    Times are in seconds of the children's clock.
    """

    def __init__(self, children: Iterable[Child], seconds: float) -> None:
        self._children = list(children)
        self._seconds = seconds
        self._stage = -1
        self._ends = 0.0

    def advance(self, now: float) -> None:
        alive = [child for child in self._children if child.running]
        if not alive:
            return
        stage = min(child.spec.stage for child in alive)
        members = [child for child in alive if child.spec.stage == stage]
        if stage != self._stage:
            self._ends = now + (self._seconds if self._stage < 0 else STAGE_SECONDS)
            self._stage = stage
            for child in members:
                child.terminate()
        elif now >= self._ends:
            for child in members:
                log.warning("%s did not end in time; killing it", child.name)
                child.kill()
            self._ends = now + STAGE_SECONDS
