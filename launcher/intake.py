"""Which requests the frontends are to take, refuse, hold or end, and what they have told of those they have."""

from collections.abc import Iterable

import msgspec

from messages.cluster import BEGUN, DEAD, INTAKE, LETS_IN, OPEN, ProcessState

FRONTEND = "frontend"
OPERATOR = "operator"


class Unfinished(msgspec.Struct, frozen=True):
    """Requests in all frontends: `running` ones, for which something has been generated, and those `queued` before that."""

    running: int
    queued: int

    def __bool__(self) -> bool:
        return self.running + self.queued > 0

    def __str__(self) -> str:
        return f"{self.running} running, {self.queued} queued"


def all_let_in(processes: Iterable[ProcessState]) -> bool:
    """Whether every frontend has heard that the cluster is ready."""
    return all(process.gauges.get(LETS_IN, 0.0) > 0 for process in processes if process.name.startswith(FRONTEND))


def unfinished(processes: Iterable[ProcessState], intake: int) -> Unfinished | None:
    """As the frontends tell it that live; None until each of them follows `intake`: one that does not may still take a request."""
    frontends = [process for process in processes if process.name.startswith(FRONTEND) and process.phase != DEAD]
    if any(process.gauges.get(INTAKE, -1.0) < intake for process in frontends):
        return None
    opened, begun = (int(sum(process.gauges.get(name, 0.0) for process in frontends)) for name in (OPEN, BEGUN))
    return Unfinished(begun, max(0, opened - begun))


class Intake:
    """The flags of ClusterState; `number` counts their changes, `serving` the sets of processes that have served a model."""

    def __init__(self) -> None:
        self.number = self.serving = 0
        self.draining = self.holding = self.cutting = False
        self._drains: set[str] = set()

    def drain(self, on: bool, whom: str) -> None:
        """`whom`: who wants it. It ends when nobody does."""
        self._drains = self._drains | {whom} if on else self._drains - {whom}
        self._set("draining", bool(self._drains))

    def hold(self, on: bool) -> None:
        """Off ends `cut` too."""
        self._set("holding", on)
        if not on:
            self._set("cutting", False)

    def cut(self) -> None:
        self._set("cutting", True)

    def _set(self, name: str, on: bool) -> None:
        if getattr(self, name) != on:
            setattr(self, name, on)
            self.number += 1
