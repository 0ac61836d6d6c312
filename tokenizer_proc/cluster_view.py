"""What a tokenizer process needs to know of the others: who was restarted, and the context the scheduler runs with."""

from dataclasses import dataclass, field

from messages.cluster import DEAD, STOPPING, ClusterState, ProcessState

SCHEDULER = "scheduler"


@dataclass
class ClusterView:
    """`context` in tokens, None while no scheduler is there to say it."""

    context: int | None = None
    _incarnations: dict[str, int] = field(default_factory=dict)

    def update(self, state: ClusterState) -> set[str]:
        """Take in a new state; gives the names of processes that died or were restarted since the last one."""
        gone = {process.name for process in state.processes if self._is_gone(process)}
        self._incarnations |= {process.name: process.incarnation for process in state.processes}
        self.context = next((_context(process) for process in state.processes if process.name == SCHEDULER), None)
        return gone

    def _is_gone(self, process: ProcessState) -> bool:
        return process.phase == DEAD or self._incarnations.get(process.name, process.incarnation) != process.incarnation


def _context(scheduler: ProcessState) -> int | None:
    value = scheduler.facts.get("context")
    return int(value) if isinstance(value, int | float) and value > 0 and scheduler.phase not in (DEAD, STOPPING) else None
