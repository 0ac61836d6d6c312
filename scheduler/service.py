"""The scheduler process: sockets, clock and reports around the engine."""

import logging
import random
import time
from pathlib import Path
from typing import Any

import zmq

from messages.admit import FromTokenizerProc
from messages.cluster import LOADING, READY, STALLED, STOPPING, ClusterState, Hung
from messages.live import LIVE_FEED
from messages.plan import StepPlan
from messages.poison import Poison
from messages.result import FromWorker
from messages.text import Problem
from scheduler.args import SchedulerArgs
from scheduler.engine import Engine
from scheduler.errors import ContractError, InvariantError
from scheduler.geometry import Geometry
from scheduler.poison import keep_poison
from scheduler.recorded import RecordedEngine
from scheduler.recorder import start_recording
from scheduler.step_times import StepTimes
from scheduler.tracing import Tracing
from scheduler.views import Views
from transport.clock import Clock
from transport.lifetime import Lifetime
from transport.reports import CLUSTER_FEED, SUPERVISOR, Reporter
from transport.sockets import Inbox, Outbox, Subscription
from transport.trace import open_trace
from transport.vitals import BUSY, OVER, Vitals
from transport.watched_feed import WatchedFeed

log = logging.getLogger(__name__)

TICK_SECONDS = 0.2
STUCK_SECONDS = 5.0
LINGER_MS = 500
PAUSE_SECONDS = 2.0
"""A turn that comes so much later than the one before was kept from running, as others may have been."""
MOST_REPAIRS, REPAIR_WINDOW_SECONDS = 5, 60.0


class Sessions:
    """Session ids: random, positive, 31 bits, never repeated."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()
        self._used: set[int] = set()

    def __call__(self) -> int:
        while True:
            number = self._random.randrange(1, 2**31)
            if number not in self._used:
                self._used.add(number)
                return number


class Service:
    """`run()` until SIGTERM: then accept nothing, let live sequences go on for `drain_seconds`, end the rest with 503 and return."""

    def __init__(self, args: SchedulerArgs, lifetime: Lifetime) -> None:
        self._args = args
        self._lifetime = lifetime
        self._context: zmq.Context[Any] = zmq.Context()
        self._inbox: Inbox[FromTokenizerProc | FromWorker] = Inbox(self._context, args.run_dir, args.name, FromTokenizerProc | FromWorker)
        names = [args.worker, *args.tokenizers]
        self._outboxes = {name: Outbox(self._context, args.run_dir, name, linger_ms=LINGER_MS) for name in names}
        self._supervisor = Outbox(self._context, args.run_dir, SUPERVISOR, linger_ms=LINGER_MS)
        self._cluster: Subscription[ClusterState] = Subscription(self._context, args.run_dir, CLUSTER_FEED, ClusterState)
        self._recorder = None if args.record is None else start_recording(args)
        self._engine = Engine(args, Sessions()) if self._recorder is None else RecordedEngine(args, Sessions(), self._recorder)
        trace = open_trace(args)
        self._tracing = None if trace is None else Tracing(trace)
        self._feed = WatchedFeed(self._context, args.run_dir, LIVE_FEED)
        self._views = Views()
        self._times = StepTimes(time.monotonic())
        self._vitals, self._silent = Vitals(0), False
        self._over: dict[str, int] = {}
        self._beat = time.monotonic()
        self._tick = 0.0
        self._checked = 0
        self._repairs: list[float] = []
        self._phase = ""
        self._facts: Geometry | None = None
        self._reporter = Reporter(args, alive=lambda: time.monotonic() - self._beat < STUCK_SECONDS)

    def run(self) -> None:
        try:
            self._engine.open()
            self._send()
            while not self._lifetime.stopping.is_set():
                self._turn()
            self._drain()
        finally:
            self._close()

    def _turn(self) -> None:
        self._inbox.wait(self._patience())
        now = time.monotonic()
        if now - self._beat > PAUSE_SECONDS:
            self._engine.excuse(now)
        self._beat = now
        self._take_in(now)
        composing = time.monotonic()
        try:
            self._engine.advance(now)
        except Exception as error:  # a fault of ours must not lose what runs
            self._repair(error)
        self._send(composing)
        self._times.planned(time.monotonic() - composing)
        if now - self._tick >= TICK_SECONDS:
            self._tick = now
            self._watch_cluster()
            self._watch_worker(now)
            self._self_check()
            self._report(now)
            if self._feed.watched:
                self._feed.publish(self._views.view(self._engine.scene(), now))

    def _patience(self) -> float:
        """Seconds to wait for a message."""
        due = self._engine.next_deadline
        return TICK_SECONDS if due is None else min(TICK_SECONDS, max(0.0, due - time.monotonic()))

    def _self_check(self) -> None:
        """When idle, once after every busy time."""
        steps = self._engine.tally.counts["steps"]
        if self._args.self_check and self._engine.idle and steps != self._checked:
            self._checked = steps
            try:
                self._engine.check()
            except InvariantError as error:
                self._repair(error)
                self._send()

    def _take_in(self, now: float) -> None:
        for message in self._inbox.drain():
            begun = time.monotonic()
            self._times.received(message)
            try:
                self._engine.receive(message, now)
            except ContractError as error:
                self._inbox.reject(str(error))
            except Exception as error:  # as above
                self._repair(error)
            if self._tracing is not None:
                self._tracing.received(message, begun, time.monotonic())

    def _repair(self, error: Exception) -> None:
        """Begin anew after an error of our own, but not for ever: then this process ends, and the supervisor starts another."""
        now = time.monotonic()
        self._repairs = [*(then for then in self._repairs if now - then < REPAIR_WINDOW_SECONDS), now]
        if len(self._repairs) > MOST_REPAIRS:
            raise error
        if not isinstance(error, InvariantError):
            log.error("a step of the scheduler failed", exc_info=error)
            error = InvariantError([f"{type(error).__name__}: {error}"])
        self._engine.repair(error)

    def _send(self, composing: float = 0.0) -> None:
        """`composing`: since when what is sent was made. A request's steps are kept before its client hears of its end."""
        for poison in self._engine.take_poison():
            self._keep(poison)
        for name, message in self._engine.take():
            if not self._outboxes[name].send(message) and name != self._args.worker:
                self._engine.tokenizer_lost(name)
            if self._tracing is not None and isinstance(message, StepPlan):
                sent = time.monotonic()
                self._tracing.planned(message, self._engine.session, composing, sent)
                composing = sent

    def _watch_cluster(self) -> None:
        state = self._cluster.latest()
        if state is None:
            return
        for process in state.processes:
            if process.name == self._args.worker:
                self._silent = process.phase == STALLED
                if process.pid != self._vitals.pid:
                    self._vitals = Vitals(process.pid)
            if process.name in self._args.tokenizers:
                over = process.over
                if over != self._over.setdefault(process.name, over):
                    if state.stop_seconds is None and not self._lifetime.stopping.is_set():  # else it was told to end
                        log.warning("%s has died: its sequences are cancelled, unless its frontends send them again", process.name)
                    self._over[process.name] = over
                    self._engine.tokenizer_lost(process.name, over)

    def _watch_worker(self, now: float) -> None:
        """Have a worker that misses a deadline killed, once: the next one is of another session."""
        deadlines = self._engine.deadlines
        looks = self._vitals.look(now) if self._silent or deadlines.watching else ""
        deadlines.stopped, deadlines.busy = looks == OVER, looks == BUSY
        why = self._engine.give_up(now)
        if why is not None:
            log.error("%s hangs: %s", self._args.worker, why)
            self._supervisor.send(Hung(name=self._args.worker, incarnation=self._engine.worker_incarnation, reason=why))

    def _keep(self, poison: Poison) -> None:
        path = keep_poison(Path(self._args.run_dir), poison)
        kept = "" if path is None else f"; its steps, with its token ids, are in {path}, for `replay`"
        log.error("a request was found to end the worker and has been failed: %s%s", poison.why, kept)

    def _report(self, now: float) -> None:
        counters = {name: float(count) for name, count in self._engine.tally.counts.items()}
        counters |= self._engine.step_sizes.counters() | self._times.counters(now)
        counters["bad_frames"] = self._inbox.bad_frames
        if self._recorder is not None:
            counters["record_errors"] = self._recorder.errors
        self._reporter.numbers(self._engine.gauges() | self._engine.awaited(now), counters)
        geometry = self._engine.geometry
        if geometry is not None and geometry != self._facts:
            self._facts = geometry
            sizes = {"blocks": geometry.blocks, "block_size": geometry.block_size, "slots": geometry.slots}
            self._reporter.facts(context=geometry.context, wanted_context=geometry.wanted, **sizes)
            if geometry.context < geometry.wanted:
                log.warning("the KV memory holds %d tokens: that is the context now, instead of %d", geometry.context, geometry.wanted)
            log.info("attached: context %d, %d blocks of %d, %d slots", geometry.context, geometry.blocks, geometry.block_size, geometry.slots)
        phase, detail = self._phase_now(now)
        if phase != self._phase:
            self._phase = phase
            self._reporter.phase(phase, detail)

    def _phase_now(self, now: float) -> tuple[str, str]:
        if self._lifetime.stopping.is_set():
            return STOPPING, ""
        if self._engine.geometry is None:
            return LOADING, "waiting for the worker"
        if (overdue := self._engine.overdue(now)) is not None:
            return STALLED, overdue
        return READY, ""

    def _drain(self) -> None:
        self._engine.close()
        clock = Clock()
        deadline = clock.now + self._args.drain_seconds
        self._report(time.monotonic())
        while not self._engine.idle and clock.look() < deadline:
            self._turn()
        self._take_in(time.monotonic())
        self._engine.fail_all(Problem(status=503, code="shutting_down", message="the server is shutting down", passing=True))
        self._send()

    def _close(self) -> None:
        if self._recorder is not None:
            self._recorder.stop()
        if self._tracing is not None:
            self._tracing.close()
        self._reporter.close()
        self._inbox.close()
        self._cluster.close()
        self._feed.close()
        self._supervisor.close()
        for outbox in self._outboxes.values():
            outbox.close()
        self._context.term()
