"""The worker's main loop: attach, plans in order, results."""

import logging
import time
from pathlib import Path

import zmq

from messages.cluster import READY, SCHEDULER_NAME, STOPPING
from messages.plan import Attach, Prepare, Shutdown, StepPlan, ToWorker
from messages.result import Attached, FromWorker, Origin, StepFailed, WorkerReady
from transport.lifetime import Lifetime
from transport.reports import Reporter
from transport.sockets import Inbox, Outbox
from transport.trace import Trace, open_trace
from worker.args import WorkerArgs
from worker.engine import DeviceError, StepEngine, StepError
from worker.grammars import Grammars
from worker.plan import PlanError
from worker.pulse import Pulse
from worker.tracing import Tracing

log = logging.getLogger(__name__)

READY_SECONDS = 1.0
FIRST_READY_SECONDS = 0.25
"""A scheduler that is there already may ask by itself; this is longer than its socket takes to connect. One that waits for a worker that is started
again does not, and requests wait with it."""
WAIT_SECONDS = 0.1
"""The longest the loop sleeps: how late it may notice SIGTERM."""
QUIET_SECONDS = 2.0
"""After so long without a plan, or before the first one, nobody is likely to need this process in the next moment."""
NO_SESSION = -1


class Service:
    """Plays plans of the scheduler's current session on `engine`. Use `run`."""

    _trace: Trace | None = None

    def __init__(self, args: WorkerArgs, engine: StepEngine, reporter: Reporter, lifetime: Lifetime, pulse: Pulse) -> None:
        self._args = args
        self._engine = engine
        self._reporter = reporter
        self._lifetime = lifetime
        self._pulse = pulse
        self._session = NO_SESSION
        self._ignored = 0
        self._failed_plans = 0
        self._warming = True
        self._worked = -QUIET_SECONDS
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._inbox: Inbox[ToWorker] = Inbox(self._context, args.run_dir, args.name, ToWorker)
        self._outbox = Outbox(self._context, args.run_dir, SCHEDULER_NAME, linger_ms=500)
        self._results = Outbox(
            self._context, args.run_dir, SCHEDULER_NAME, linger_ms=500
        )  # a socket of its own: the engine may send from a thread of its own
        self._prepared = Outbox(self._context, args.run_dir, SCHEDULER_NAME, linger_ms=500)  # as above
        self._grammars = Grammars(Path(args.run_dir), engine.slots.matching, self._prepared.send)

    def run(self) -> None:
        """Serve until SIGTERM or Shutdown. Raises DeviceError at once, with everything left as it is: taking it down could take long, or for ever."""
        self._trace = open_trace(self._args)
        try:
            self._serve(None if self._trace is None else Tracing(self._trace))
        except DeviceError:
            raise
        except BaseException:
            self._close()
            raise
        self._close()

    def end_trace(self) -> None:
        """All that was to be traced is in the file."""
        if self._trace is not None:
            self._trace.close()

    def _serve(self, tracing: Tracing | None) -> None:
        self._engine.start(self._results.send, tracing)
        self._reporter.phase(READY, "waiting for the scheduler")
        last_ready = time.monotonic() - READY_SECONDS + (FIRST_READY_SECONDS if self._args.incarnation <= 1 else 0.0)
        while not self._lifetime.stopping.is_set():
            self._pulse.beat()
            if self._session == NO_SESSION and time.monotonic() - last_ready >= READY_SECONDS:
                last_ready = time.monotonic()
                self._send(WorkerReady(worker=self._args.name, incarnation=self._args.incarnation))
            if self._inbox.wait(WAIT_SECONDS):
                self._handle_all()
            else:
                self._rest()
        self._engine.close()

    def _close(self) -> None:
        self.end_trace()
        self._reporter.phase(STOPPING)
        self._grammars.close()
        self._inbox.close()
        self._prepared.close()
        self._outbox.close()
        self._results.close()
        self._context.term()

    def _rest(self) -> None:
        """Nothing has come for a while: use the time, a little at a time."""
        self._engine.check()
        if time.monotonic() - self._worked > QUIET_SECONDS:
            self._grammars.open_ahead()
        while self._warming and not self._lifetime.stopping.is_set() and not self._inbox.wait(0):
            self._pulse.beat()
            self._warming = self._engine.idle()
        self._report()

    def _handle_all(self) -> None:
        received = time.perf_counter()
        for message in self._inbox.drain():
            if self._lifetime.stopping.is_set():
                return
            self._pulse.beat()
            self._handle(message, received)
        self._report()

    def _handle(self, message: ToWorker, received: float) -> None:
        if isinstance(message, Attach):
            self._attach(message.session)
        elif isinstance(message, Shutdown):
            self._lifetime.stopping.set()
        elif message.session != self._session:
            self._ignored += isinstance(message, StepPlan)
        elif isinstance(message, Prepare):
            self._grammars.prepare(message)
        else:
            self._step(message, received)

    def _attach(self, session: int) -> None:
        if session < 0:
            self._inbox.reject(f"session {session}")
            return
        engine, cache = self._engine, self._engine.cache
        engine.reset()
        self._grammars.begin()
        self._session = session
        log.info("attached to session %d", session)
        self._reporter.phase(READY, "attached")
        self._send(
            Attached(
                session=session,
                worker=self._args.name,
                blocks=cache.blocks,
                block_size=cache.block_size,
                max_slots=engine.slots.count,
                max_blocks_per_slot=engine.slots.table.shape[1],
                max_step_tokens=engine.max_step_tokens,
                context=engine.config.context,
                vocab=engine.slots.vocab,
                incarnation=self._args.incarnation,
                origin=_origin(self._args),
            )
        )

    def _step(self, plan: StepPlan, received: float) -> None:
        self._worked = time.monotonic()
        queued = time.perf_counter() - received
        try:
            self._engine.submit(plan, queued)
        except (PlanError, StepError) as error:
            log.error("step %d of session %d cannot be run, the session is dropped: %s", plan.step, plan.session, error)
            self._failed_plans += 1
            self._session = NO_SESSION
            self._reporter.phase(READY, "waiting for the scheduler")
            self._send(StepFailed(session=plan.session, step=plan.step, message=str(error)))

    def _send(self, message: FromWorker) -> None:
        self._outbox.send(message)

    def _report(self) -> None:
        totals = self._engine.totals
        self._reporter.numbers(
            {"warming": float(self._warming)},
            {
                "steps": float(totals.steps),
                "prefill_tokens": float(totals.prefill_tokens),
                "decode_tokens": float(totals.decode_tokens),
                "step_seconds": totals.seconds,
                "gap_seconds": totals.gap_seconds,
                "failed_plans": float(self._failed_plans),
                "ignored_plans": float(self._ignored),
                "bad_frames": float(self._inbox.bad_frames),
            },
        )


def _origin(args: WorkerArgs) -> Origin:
    return Origin(
        model=args.model,
        device=args.device,
        dtype=args.dtype,
        kv_dtype=args.kv_dtype,
        weights=args.weights,
        deterministic=args.deterministic,
        dummy_weights=args.dummy_weights,
        max_context=args.max_context,
        model_shape=args.model_shape,
    )
