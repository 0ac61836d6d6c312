"""What a tokenizer process needs to know of the others: which frontends are over, and the context the scheduler runs with."""

from dataclasses import dataclass, field

from messages.cluster import SCHEDULER_NAME, ClusterState, ProcessState


@dataclass
class ClusterView:
    """`context` in tokens, as the scheduler last said it; None before it did. While another scheduler starts, requests wait for it on their way."""

    context: int | None = None
    _over: dict[str, int] = field(default_factory=dict)

    def update(self, state: ClusterState) -> bool:
        """Take in a new state; True when a process is over since the last one."""
        known, self._over = self._over, {process.name: process.over for process in state.processes}
        self.context = next((_context(process) for process in state.processes if process.name == SCHEDULER_NAME), None) or self.context
        return known != self._over

    def is_over(self, name: str, incarnation: int) -> bool:
        """This incarnation of a process has died."""
        return incarnation <= self._over.get(name, -1)


def _context(scheduler: ProcessState) -> int | None:
    value = scheduler.facts.get("context")
    return int(value) if isinstance(value, int | float) and value > 0 else None
