"""The real scheduler on a virtual clock, between clients who send a workload and a worker that takes the cost model's time."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from messages.admit import Abort, FromTokenizerProc
from messages.plan import Attach, StepPlan
from messages.result import Attached, FromWorker
from messages.tokens import Refused, Tokens
from scheduler.args import SchedulerArgs
from scheduler.engine import Engine
from simulator.clients import TOKENIZER, Clients
from simulator.cost import CostModel
from simulator.errors import SimulatorError
from simulator.trace import GAUGE_COLUMNS, STEP_COLUMNS, Trace
from simulator.worker import NullWorker
from simulator.workload import Job, Workload

TICK_SECONDS = 0.2
MAX_IDLE_TICKS = 1000
WATCH_STEPS = 200
Event = Job | FromTokenizerProc | FromWorker | None
Watcher = Callable[[int, float], None]
MakeEngine = Callable[[SchedulerArgs, Callable[[], int]], Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The simulated worker and the scheduler's settings. Sizes in tokens but `slots` (rows) and `blocks`; `target_itl` in seconds."""

    slots: int = 64
    blocks: int = 8192
    block_size: int = 16
    max_step_tokens: int = 512
    chunk_tokens: int = 128
    context: int = 32_768
    run_ahead: int = 2
    prefix_cache: bool = True
    target_itl: float | None = None
    max_queue: int = 1024
    max_queue_tokens: int = 4_000_000
    max_live_tokens: int = 0
    max_queue_seconds: float = 0.0

    def scheduler_args(self) -> SchedulerArgs:
        return SchedulerArgs(
            name="scheduler",
            incarnation=1,
            run_dir="",
            tokenizers=[TOKENIZER],
            chunk_tokens=self.chunk_tokens,
            max_queue=self.max_queue,
            max_queue_tokens=self.max_queue_tokens,
            max_live_tokens=self.max_live_tokens,
            max_queue_seconds=self.max_queue_seconds,
            run_ahead=self.run_ahead,
            prefix_cache=self.prefix_cache,
            target_itl=self.target_itl,
        )

    def attached(self, session: int, vocab: int) -> Attached:
        return Attached(
            session=session,
            worker="worker0",
            blocks=self.blocks,
            block_size=self.block_size,
            max_slots=self.slots,
            max_blocks_per_slot=min(self.blocks, -(-self.context // self.block_size)),
            max_step_tokens=self.max_step_tokens,
            context=self.context,
            vocab=vocab,
        )


class Simulation:
    """`run()` once; then `clients`, `steps`, `gauges` and `engine` tell what happened. A step is one row of `steps`, with the worker's time over it.

    The worker computes plans in the order sent, one at a time, as a real one does; the scheduler itself takes no virtual time. Everything
    that comes at one moment is received before the scheduler plans. The same input gives the same numbers.
    """

    def __init__(self, workload: Workload, machine: Machine, cost: CostModel, make_engine: MakeEngine = Engine) -> None:
        vocab = workload.vocab + 1
        sessions = count(1)
        self.machine = machine
        self.clients = Clients(workload, vocab)
        self.steps = Trace(STEP_COLUMNS)
        self.gauges = Trace(GAUGE_COLUMNS)
        self.engine = make_engine(machine.scheduler_args(), lambda: next(sessions))
        self.now = 0.0
        self._requests = workload.requests
        self._vocab = vocab
        self._cost = cost
        self._worker: NullWorker | None = None
        self._free_at = 0.0
        self._order = count()
        self._events: list[tuple[float, int, Event]] = []

    def run(self, watch: Watcher | None = None) -> None:
        """Until every client has its answer. `watch(requests ended, virtual seconds)` is called now and then. Raises SimulatorError."""
        self.engine.open()
        self._send()
        told = idle = 0
        while self._events or not self.engine.idle:
            idle = 0 if self._events else idle + 1
            if idle > MAX_IDLE_TICKS:
                raise SimulatorError(f"the scheduler stopped at {self.now:.3f} s with requests left; report it with the command and the workload")
            if idle:
                self._push(self.now + TICK_SECONDS, None)
            self._turn()
            if watch is not None and len(self.steps) >= told + WATCH_STEPS:
                told = len(self.steps)
                watch(self.clients.ended, self.now)
        if not self.clients.sent:
            raise SimulatorError("the workload has no requests")
        if self.clients.problem is not None and not self.engine.tally.counts["accepted"]:
            raise SimulatorError(f"every request was refused: {self.clients.problem.message}; --max-context and --blocks say how much fits")

    def _turn(self) -> None:
        """Everything that happens at the next moment."""
        self.now = self._events[0][0]
        while self._events and self._events[0][0] <= self.now:
            self._receive(heapq.heappop(self._events)[2])
        self.engine.advance(self.now)
        self._send()
        gauges = self.engine.gauges()
        self.gauges.add(self.now, *(gauges[name] for name in GAUGE_COLUMNS[1:]))

    def _receive(self, event: Event) -> None:
        match event:
            case None:
                return
            case Job():
                self.engine.receive(self.clients.admit(event, self.now), self.now)
            case Abort():
                self.engine.receive(event, self.now)
                self.clients.abort(event, self.now)
            case _:
                self.engine.receive(event, self.now)

    def _send(self) -> None:
        for _, message in self.engine.take():
            if isinstance(message, Tokens | Refused):
                self.clients.receive(message, self.now)
            elif isinstance(message, Attach):
                self._attach(message)
            elif isinstance(message, StepPlan) and self._worker is not None:
                self._compute(message, self._worker)
        for at, post in self.clients.due:
            self._push(max(at, self.now), post)
        self.clients.due.clear()

    def _attach(self, message: Attach) -> None:
        attached = self.machine.attached(message.session, self._vocab)
        self._worker = NullWorker(attached, self.clients.script)
        self._push(self.now, attached)

    def _compute(self, plan: StepPlan, worker: NullWorker) -> None:
        result, work = worker.run(plan)
        arrived = self.now + self._cost.latency
        start, seconds = max(arrived, self._free_at), self._cost.seconds(work)
        self._free_at = start + seconds
        self.steps.add(start, seconds, work.prefill_tokens, work.decode_rows, work.context_tokens, len(result.status))
        timed = type(result)(
            session=result.session, step=result.step, slot=result.slot, token=result.token, status=result.status,
            seconds=seconds, queued=start - arrived,
        )  # fmt: skip
        self._push(self._free_at + self._cost.latency, timed)

    def _push(self, at: float, event: Event) -> None:
        heapq.heappush(self._events, (at, next(self._order), event))
