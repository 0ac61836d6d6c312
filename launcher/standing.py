"""How a cluster stands, from how its processes do."""

from collections.abc import Sequence

from launcher.changeover import Changeover
from launcher.intake import Intake, unfinished
from messages.change import WAITING
from messages.cluster import CHANGING, DEAD, DRAINING, LOADING, READY, STALLED, STARTING, STOPPING, ProcessState

PHASE_ORDER = [DEAD, STARTING, LOADING, STALLED, STOPPING, READY]
"""The cluster is as far as its least advanced process."""
UP = {READY, DRAINING, CHANGING}
"""Phases of a cluster all of whose processes are ready."""


def standing(processes: Sequence[ProcessState], intake: Intake, change: Changeover | None) -> tuple[str, str]:
    """The phase, and why it is not READY. `change`: the one that is going on."""
    worst = min(processes, key=lambda process: PHASE_ORDER.index(process.phase) if process.phase in PHASE_ORDER else 0)
    if worst.phase != READY:
        return worst.phase, _reason(worst) if change is None else f"{change.order.kind}: {_reason(worst)}"
    if intake.draining:
        left = unfinished(processes, intake.number)
        return DRAINING, "draining" if left is None else f"draining: {left}"
    if change is not None and change.phase == WAITING:
        return CHANGING, f"{change.order.kind} to {change.order.after.model}: waits for what runs ({change.told().note or 'asking the frontends'})"
    return READY, ""


def _reason(process: ProcessState) -> str:
    """In words: 'worker0 loading weights 43 %'."""
    if process.phase == DEAD:
        return f"{process.name} died: {process.detail}"
    if process.phase == LOADING and process.detail:
        return f"{process.name} {process.detail}"
    return f"{process.name} {process.phase}" + (f": {process.detail}" if process.detail else "")
