"""What the supervisor last published: readiness, the way to the scheduler, the context length."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dialects.names import NONE
from dialects.registry import TOOLS
from frontend.errors import ApiError
from messages.cluster import (
    CHANGING,
    DEAD,
    DEFAULT,
    DRAINING,
    MARKER,
    OPENS,
    OPENS_OFF,
    OPENS_ON,
    READY,
    REASONING_PARSER,
    SCHEDULER_NAME,
    STALLED,
    STARTING,
    STOPPING,
    THINKING_SWITCH,
    TOOL_PARSER,
    ClusterState,
    ProcessState,
)

SILENCE_SECONDS = 3.0
LOOK_SECONDS = 1.0
"""Longer than between two looks at what the supervisor publishes: then this process itself has not run."""
RETRY_SECONDS, DRAIN_RETRY_SECONDS = 2.0, 5.0
"""When to come again; of a cluster that drains to end there is perhaps another one then."""
INFORMED_SECONDS = 30.0
CONTEXT = "context"
"""The fact by which a scheduler is known: with it, it takes requests, whatever its worker does."""


class Route(NamedTuple):
    """The processes a request goes through, with the incarnations it was sent to: when one of them is over, the request is."""

    tokenizer: str
    tokenizer_incarnation: int
    scheduler: str
    scheduler_incarnation: int


class ClusterView:
    """The frontend's view of the cluster. `frontends`: names of all on its port, whose deaths are no business of the requests of the others.

    `started`: the cluster was ready once. `model` and `created`: what it serves, and since when (UNIX seconds), until it is told. `clock` gives
    monotonic seconds. `marker_ids`: of the markers of tool calls and reasoning that are special tokens. `released`: when requests were last held.
    `leaving`: this process is about to end, and refuses requests if `stopping` too.
    """

    def __init__(
        self,
        tokenizers: list[str],
        frontends: Sequence[str] = (),
        started: bool = False,
        clock: Callable[[], float] = time.monotonic,
        model: str = "",
        created: int = 0,
    ) -> None:
        self._names = tokenizers
        self._frontends = frozenset(frontends)
        self._clock = clock
        self._heard = 0.0
        self._looked = math.inf
        self._next = 0
        self._informed = asyncio.Event()
        self._context: int | None = None
        self._defaults: dict[str, float] = {}
        self._parsers: dict[str, str] = {}
        self._opens: dict[str, bool] = {}
        self.marker_ids: dict[str, int] = {}
        self.state: ClusterState | None = None
        self.model, self.created = model, created
        self.released = -math.inf
        self.started = started
        self.stopping = self.leaving = False

    def look(self) -> None:
        """What the supervisor publishes is about to be read. Seconds in which this process did not run are not the supervisor's silence."""
        now = self._clock()
        self._heard += max(0.0, now - self._looked - LOOK_SECONDS)
        self._looked = now

    def update(self, state: ClusterState) -> None:
        self.state = state
        self._heard = self._clock()
        self.started = self.started or state.ready or state.phase in (DRAINING, CHANGING)
        self.model, self.created = state.model, state.created or self.created
        if state.holding:
            self.released = self._heard
        else:
            self._learn(state)
        if self._serves(state) or (self._context is not None and any(process.facts for process in state.processes if process.name in self._names)):
            self._informed.set()

    def _learn(self, state: ClusterState) -> None:
        """What the processes say of the model; while another one loads, what they said before holds."""
        facts = [fact for process in state.processes for fact in process.facts.items()]
        for name, value in facts:
            if name == CONTEXT and isinstance(value, (int, float)):
                self._context = int(value)
        if any(process.facts for process in state.processes if process.name in self._names):
            told = [(name.removeprefix(DEFAULT), value) for name, value in facts if name.startswith(DEFAULT)]
            self._defaults = {name: value for name, value in told if isinstance(value, (int, float))}
            names = (TOOL_PARSER, REASONING_PARSER, THINKING_SWITCH)
            self._parsers = {name: value for name, value in facts if name in names and isinstance(value, str)}
            self._opens = {name: bool(value) for name, value in facts if name in (OPENS, OPENS_ON, OPENS_OFF)}
            markers = ((name.removeprefix(MARKER), value) for name, value in facts if name.startswith(MARKER))
            self.marker_ids = {name: value for name, value in markers if isinstance(value, int)}

    def _serves(self, state: ClusterState) -> bool:
        """Every process is ready, or only frontends are not, once they were."""
        if state.ready or not self.started or state.stop_seconds is not None:
            return state.ready
        missing = {process.name for process in state.processes if process.phase != READY}
        return bool(missing) and missing <= self._frontends

    def _silence(self) -> float:
        return min(self._clock(), self._looked + LOOK_SECONDS) - self._heard

    @property
    def processes(self) -> list[ProcessState]:
        return self.state.processes if self.state else []

    @property
    def scheduler(self) -> ProcessState | None:
        """As it was last told; None before the first state."""
        return next((process for process in self.processes if process.name == SCHEDULER_NAME), None)

    @property
    def draining(self) -> bool:
        """New requests are refused, for as long as somebody wants."""
        return self.state is not None and self.state.draining

    @property
    def holding(self) -> bool:
        """Requests for which nothing has been generated wait for other processes."""
        return self.state is not None and self.state.holding

    @property
    def cutting(self) -> bool:
        """The others are not waited for."""
        return self.state is not None and self.state.cutting

    @property
    def serving(self) -> int:
        """The set of processes that requests go to: what has begun on one is not continued on another."""
        return self.state.serving if self.state else 0

    @property
    def models(self) -> set[str]:
        """The names that a request may give: what is served, and while requests are held what is to come."""
        coming = self.state.change if self.state is not None and self.state.holding else None
        return {self.model} if coming is None else {self.model, coming.model}

    @property
    def phase(self) -> str:
        return self.state.phase if self.state else STARTING

    def reason(self) -> str | None:
        """Why requests cannot be served now, or None when they can."""
        if self.stopping:
            return "the server is shutting down"
        if self.draining and self.state is not None:
            return f"{DRAINING}: the requests that it has are finished, and no new ones are taken"
        if self.state is None:
            return "starting: waiting for the supervisor"
        silence = self._silence()
        if silence > SILENCE_SECONDS:
            return f"the supervisor has not been heard from for {silence:.0f} s"
        if not self._serves(self.state):
            return _progress(self.state)
        if not self._ready_tokenizers():
            return "no tokenizer process is ready"
        return None

    def refusal(self, accepted: bool = False) -> str | None:
        """Why requests are not taken now, or None: before the cluster was ready once, and when it is about to end.

        While a process that died starts again, or another model is loaded, they are taken, and wait on their way. `accepted`: of those that were
        accepted before, which are finished when the cluster drains.
        """
        ending = self.stopping or (self.draining and not accepted) or (self.state is not None and self.state.stop_seconds is not None)
        return self.reason() if ending or self._silent or not self.started else None

    def require_accepting(self, accepted: bool = False) -> None:
        """Raises ApiError 503 with the phase and the progress when requests are not taken."""
        if reason := self.refusal(accepted):
            raise self.unready(reason)

    def unready(self, reason: str) -> ApiError:
        """503 for this reason."""
        if self.draining:
            return ApiError(503, DRAINING, f"Not ready: {reason}.", retry_after=DRAIN_RETRY_SECONDS)
        return ApiError(503, "not_ready", f"Not ready: {reason}.", retry_after=RETRY_SECONDS)

    async def informed(self) -> None:
        """Wait until it is known what the processes say of the model: one that was started again takes requests before. Raises ApiError 503."""
        while not self._informed.is_set():
            try:
                async with asyncio.timeout(INFORMED_SECONDS):
                    await self._informed.wait()
            except TimeoutError as error:
                if not self.holding:
                    raise ApiError(503, "not_ready", "Not ready: nothing is known of the model yet.", retry_after=RETRY_SECONDS) from error

    @property
    def _silent(self) -> bool:
        return self.state is not None and self._silence() > SILENCE_SECONDS

    def _ready_tokenizers(self) -> list[ProcessState]:
        return [process for process in self.processes if process.name in self._names and process.phase == READY]

    def route(self) -> Route | None:
        """The way of the next request, over the ready tokenizers in turn; None while there is none."""
        scheduler = next((process for process in self.processes if CONTEXT in process.facts), None)
        ready = self._ready_tokenizers()
        if not ready or scheduler is None or scheduler.phase in (DEAD, STARTING, STOPPING):
            return None
        self._next += 1
        tokenizer = ready[self._next % len(ready)]
        return Route(tokenizer.name, tokenizer.incarnation, scheduler.name, scheduler.incarnation)

    def stands(self, route: Route) -> bool:
        """None of its processes is over."""
        return self._lives(route.tokenizer, route.tokenizer_incarnation) and self._lives(route.scheduler, route.scheduler_incarnation)

    def _lives(self, name: str, incarnation: int) -> bool:
        return any((process.name, process.incarnation) == (name, incarnation) and process.phase != DEAD for process in self.processes)

    @property
    def has_peers(self) -> bool:
        """There are other frontends."""
        return len(self._frontends) > 1

    def told_by_peers(self, gauge: str) -> dict[str, float]:
        """A gauge of every frontend that is ready, by name, as it was last told."""
        told = [process for process in self.processes if process.name in self._frontends and process.phase == READY]
        return {process.name: process.gauges.get(gauge, 0.0) for process in told}

    def serves(self, name: str) -> bool:
        """A process of this name is ready, or was and may be again."""
        return any(process.name == name and process.phase in (READY, STALLED) for process in self.processes)

    def answers(self, name: str) -> bool:
        """The same, or it is about to end: it still has the requests that it finishes."""
        return self.serves(name) or any(process.name == name and process.phase == STOPPING for process in self.processes)

    def ready(self, name: str) -> int | None:
        """The incarnation of a process that is ready."""
        return next((process.incarnation for process in self.processes if process.name == name and process.phase == READY), None)

    def sampling_defaults(self) -> dict[str, float]:
        """Of the sampling fields for which the model has its own."""
        return self._defaults

    @property
    def tool_parser(self) -> str:
        """How the model's tool calls are read: a name in `dialects.registry.TOOLS`, or NONE."""
        return self._parsers.get(TOOL_PARSER, NONE)

    @property
    def call_id_length(self) -> int | None:
        """Of the ids of tool calls, where its template insists on one."""
        dialect = TOOLS.get(self.tool_parser)
        return None if dialect is None else dialect.id_length

    @property
    def reasoning_parser(self) -> str:
        """How its reasoning is: a name in `dialects.registry.REASONING`, or NONE."""
        return self._parsers.get(REASONING_PARSER, NONE)

    @property
    def thinking_switch(self) -> str:
        """The variable by which the chat template turns reasoning on and off, or nothing."""
        return self._parsers.get(THINKING_SWITCH, "")

    def opens_reasoning(self, switched: object) -> bool:
        """Whether a prompt begins the reasoning; `switched`: how that was turned on or off, None where it was not."""
        return self._opens.get(OPENS if switched is None else OPENS_ON if switched else OPENS_OFF, False)

    def context(self) -> int | None:
        """The longest sequence in tokens, once the scheduler knows it."""
        return self._context


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
