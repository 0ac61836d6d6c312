"""What the supervisor last published: readiness, the tokenizers to use, the context length."""

import time
from collections.abc import Callable

from frontend.errors import ApiError
from messages.cluster import DEAD, DEFAULT, LOADING, READY, STALLED, STARTING, STOPPING, ClusterState, ProcessState
from messages.text import Problem

SILENCE_SECONDS = 3.0
RETRY_SECONDS = 2.0
SCHEDULER, WORKER = "scheduler", "worker"
"""The name of a process, and how the names of others begin."""


class ClusterView:
    """The frontend's view of the cluster. `clock` gives monotonic seconds."""

    def __init__(self, tokenizers: list[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._names = tokenizers
        self._clock = clock
        self._heard = 0.0
        self._next = 0
        self.state: ClusterState | None = None
        self.started = False
        self.stopping = False

    def update(self, state: ClusterState) -> None:
        self.state = state
        self._heard = self._clock()
        self.started = self.started or state.ready

    def _silence(self) -> float:
        return self._clock() - self._heard

    @property
    def processes(self) -> list[ProcessState]:
        return self.state.processes if self.state else []

    @property
    def phase(self) -> str:
        return self.state.phase if self.state else STARTING

    def reason(self) -> str | None:
        """Why requests cannot be served now, or None when they can."""
        if self.stopping:
            return "the server is shutting down"
        if self.state is None:
            return "starting: waiting for the supervisor"
        silence = self._silence()
        if silence > SILENCE_SECONDS:
            return f"the supervisor has not been heard from for {silence:.0f} s"
        if not self.state.ready:
            return _progress(self.state)
        if not self._ready_tokenizers():
            return "no tokenizer process is ready"
        return None

    def refusal(self) -> str | None:
        """Why requests are not taken now, or None. When a cluster that has served lacks no more than its worker they wait in the scheduler's line."""
        reason = self.reason()
        return None if reason is not None and self.started and self._lacks_only_worker() else reason

    def _lacks_only_worker(self) -> bool:
        state = self.state
        if self.stopping or state is None or state.phase == STOPPING or self._silence() > SILENCE_SECONDS or not self._ready_tokenizers():
            return False
        return all(process.phase == READY or _is_worker(process) or _waits_for_worker(process) for process in state.processes)

    def require_ready(self) -> None:
        """Raises ApiError 503 with the phase and the progress when requests are not taken."""
        if reason := self.refusal():
            raise ApiError(503, "not_ready", f"Not ready: {reason}.", retry_after=RETRY_SECONDS)

    def _ready_tokenizers(self) -> list[ProcessState]:
        return [process for process in self.processes if process.name in self._names and process.phase == READY]

    def choose_tokenizer(self) -> ProcessState:
        """The next ready tokenizer in turn. Raises ApiError 503 when there is none."""
        ready = self._ready_tokenizers()
        if not ready:
            raise ApiError(503, "not_ready", "Not ready: no tokenizer process is ready.", retry_after=RETRY_SECONDS)
        self._next += 1
        return ready[self._next % len(ready)]

    def lost(self, tokenizer: str, incarnation: int) -> Problem | None:
        """The problem of requests that depend on this incarnation of a tokenizer, or None while it lives."""
        for process in self.processes:
            if process.name == tokenizer and process.incarnation == incarnation and process.phase != DEAD:
                return None
        return Problem(status=503, code="tokenizer_restarted", message="A part of the server restarted; please try again.", retry_after=1.0)

    def sampling_defaults(self) -> dict[str, float]:
        """Of the sampling fields for which the model has its own."""
        facts = (fact for process in self.processes for fact in process.facts.items())
        return {name.removeprefix(DEFAULT): value for name, value in facts if name.startswith(DEFAULT) and isinstance(value, (int, float))}

    def context(self) -> int | None:
        """The longest sequence in tokens, once the scheduler knows it."""
        for process in self.processes:
            value = process.facts.get("context")
            if isinstance(value, (int, float)):
                return int(value)
        return None


def _is_worker(process: ProcessState) -> bool:
    return process.name.startswith(WORKER)


def _waits_for_worker(process: ProcessState) -> bool:
    """The scheduler, alive, but without a worker that answers."""
    return process.name == SCHEDULER and process.phase in (LOADING, STALLED)


def _progress(state: ClusterState) -> str:
    """One sentence: the phase, the supervisor's reason, and what each other process that is not ready is doing."""
    told = [] if state.reason in ("", state.phase) else [state.reason]
    waiting = [process for process in state.processes if process.phase != READY and not state.reason.startswith(f"{process.name} ")]
    return "; ".join([f"phase {state.phase}", *told, *map(_doing, waiting)])


def _doing(process: ProcessState) -> str:
    """'worker0 loading weights (43%)'."""
    words = [process.name, process.detail] if process.detail.startswith(process.phase) else [process.name, process.phase, process.detail]
    if process.progress is not None and "%" not in process.detail:
        words.append(f"({process.progress:.0%})")
    return " ".join(word for word in words if word)
