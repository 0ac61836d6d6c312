"""Between the supervisor (launch.py) and everyone: process reports, the cluster's state, commands of people."""

import msgspec

from messages.change import CancelCommand, Change, Declined, DrainCommand, FinishCommand, ReloadCommand, RestartCommand, ResumeCommand

# Phases of a process, in order. `detail` in a report says more ("loading weights 43 %").
STARTING, LOADING, READY, STALLED, STOPPING, DEAD = "starting", "loading", "ready", "stalled", "stopping", "dead"

DRAINING, CHANGING = "draining", "changing"
"""Phases of a cluster alone: its processes are ready, but new requests are refused; or are held, while running ones finish."""

SCHEDULER_NAME = "scheduler"
"""The process of which there is one: its inbox, and its state in ClusterState, have this name in every cluster."""
CONTROL = "control"
"""The socket of the supervisor that answers a Command with a CommandReply."""
DEFAULT = "default_"
TOOL_PARSER, REASONING_PARSER = "tool_parser", "reasoning_parser"
THINKING_SWITCH = "thinking_switch"
MARKER = "marker:"
OPENS, OPENS_ON, OPENS_OFF = "opens_reasoning", "opens_reasoning_on", "opens_reasoning_off"
STEP_TOKENS, STEP_TOKENS_LE = "step_tokens", "step_tokens_le_"
"""Counters of the scheduler: tokens of all steps; followed by a number, the steps of at most so many."""
INTAKE, OPEN, BEGUN, LETS_IN = "intake", "open", "begun", "lets_in"
"""Gauges of a frontend: the `intake` of the last ClusterState it has followed; requests it has let in that have not been answered; those of them
for which something has been generated; and 1 once it has heard that the cluster is ready and lets requests in."""
SAMPLE = "sample:"
"""Begins the names of those numbers of a frontend that are samples of its metrics: the others on its port add them to theirs."""


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """A process about itself, to the supervisor: at every phase change and twice a second as a heartbeat.

    `incarnation` counts starts of this name and is given by the supervisor. `gauges` are numbers now; `counters` only rise within one
    incarnation; `facts` are fixed once ready (the scheduler's: context, wanted_context, block_size, blocks, slots; the tokenizer's: chat,
    TOOL_PARSER and REASONING_PARSER, which are names of `dialects.registry`, THINKING_SWITCH, the variable by which its template turns reasoning on
    and off, OPENS and so on, whether the template's prompts begin the reasoning, by default and with the switch on and off, MARKER followed by a
    marker of these dialects that is a special token: its id, and DEFAULT followed by the name of a sampling field: what requests that leave it out
    get). `cpu_seconds` and `memory_bytes` are what it has used and takes now.
    """

    name: str
    incarnation: int
    pid: int
    phase: str
    detail: str = ""
    progress: float | None = None
    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    facts: dict[str, int | float | str] = {}
    cpu_seconds: float = 0.0
    memory_bytes: int = 0


class Hung(msgspec.Struct, frozen=True, kw_only=True, tag="hung"):
    """To the supervisor: a process that this one depends on does not answer, and is to be killed and started again.

    `incarnation` is the one that does not answer; of any other nothing is done.
    """

    name: str
    incarnation: int
    reason: str


ToSupervisor = ProcessReport | Hung


class ProcessState(msgspec.Struct, frozen=True, kw_only=True):
    """The supervisor's view of one process. `age` is the seconds since its last report; `restarts` how often it was started again.

    `past`: the last counters of its earlier incarnations, added up; `cpu_seconds` is that of all of them. `leave_seconds`: of a frontend that alone
    is about to end, how long its requests may take to finish.
    """

    name: str
    incarnation: int
    pid: int
    phase: str
    detail: str = ""
    progress: float | None = None
    age: float = 0.0
    restarts: int = 0
    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    facts: dict[str, int | float | str] = {}
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    past: dict[str, float] = {}
    leave_seconds: float | None = None

    @property
    def over(self) -> int:
        """The last of its incarnations that has died."""
        return self.incarnation - (self.phase != DEAD)

    def lifetime(self) -> dict[str, float]:
        """Its counters with those of its earlier incarnations."""
        if not self.past:
            return self.counters
        return {name: self.counters.get(name, 0.0) + self.past.get(name, 0.0) for name in {**self.past, **self.counters}}


class ClusterState(msgspec.Struct, frozen=True, kw_only=True, tag="cluster"):
    """Published by the supervisor five times a second and at every change.

    `ready` is true when every process is READY and heard from within its limit, and requests are neither refused nor held; `reason` says why not.
    `phase` is the least advanced one. `stop_seconds`: once the cluster is stopping, how long running requests may take to end. `drained`: it had none
    any more when it began to.

    `model` is what is served, under that name since `created` (UNIX seconds; 0: not told). `serving` counts the sets of processes that have served a
    model: what has begun on one is not continued on another. `intake` counts the changes of the flags after it: `draining`, new requests are
    refused; `holding`, those for which nothing has been generated wait; `cutting`, the others are ended. `change`: the last one asked for.
    """

    ready: bool
    phase: str
    reason: str
    model: str
    started: float
    processes: list[ProcessState]
    stop_seconds: float | None = None
    drained: bool = False
    created: int = 0
    serving: int = 0
    intake: int = 0
    draining: bool = False
    holding: bool = False
    cutting: bool = False
    change: Change | None = None


class StatusQuery(msgspec.Struct, frozen=True, tag="status"):
    """Answered with ClusterState."""


class StopCommand(msgspec.Struct, frozen=True, tag="stop"):
    """Shut the cluster down in order, answering `Stopping` first."""

    deadline: float = 10.0


class Stopping(msgspec.Struct, frozen=True, tag="stopping"):
    pid: int


Command = StatusQuery | StopCommand | DrainCommand | ResumeCommand | ReloadCommand | RestartCommand | CancelCommand | FinishCommand
CommandReply = ClusterState | Stopping | Declined
