"""Starts the processes of a cluster, watches them, restarts them, tells everyone their state, and ends them in order."""

import logging
import math
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import zmq

from launcher.changeover import RELOAD, RESTART, Changeover, Order
from launcher.child import Child
from launcher.control import ControlServer
from launcher.ending import STAGE_SECONDS, Ending
from launcher.errors import LauncherError
from launcher.intake import OPERATOR, Intake, Unfinished, all_let_in, unfinished
from launcher.serving import Serving
from launcher.standing import UP, standing
from messages.change import (
    CancelCommand,
    Declined,
    DrainCommand,
    FinishCommand,
    ModelOptions,
    ReloadCommand,
    RestartCommand,
    ResumeCommand,
)
from messages.cluster import READY, STOPPING, ClusterState, Command, CommandReply, Hung, StopCommand, Stopping, ToSupervisor
from transport.clock import Clock
from transport.reports import CLUSTER_FEED, SUPERVISOR
from transport.sockets import Feed, Inbox

log = logging.getLogger(__name__)

TICK_SECONDS = 0.05
PUBLISH_SECONDS = 0.2
# Every process looks at the feed five times a second: as a rule all have seen by then that the cluster is ready.
SETTLE_SECONDS = 0.3
CUT_SECONDS = 1.5
"""For the frontends to end what has not finished in time."""
INTERRUPTED = 130
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Audience(Protocol):
    """Who watches a cluster come and go. `line` is called from other threads."""

    def state(self, state: ClusterState) -> None: ...
    def ready(self, state: ClusterState) -> None: ...
    def line(self, text: str) -> None: ...
    def failed(self, message: str) -> None: ...


class Choice(Protocol):
    """What is served, and what could be (`launcher.serving.Offers`)."""

    def now(self) -> Serving: ...
    def offer(self, changes: ModelOptions) -> Serving: ...
    def adopt(self) -> None: ...


class Supervisor:
    """Runs a table of processes until it is told to stop. Lives on the main thread of the process that calls `run`.

    A process that was ready once and is then silent for more than `hang_timeout` seconds is killed and started again; 0: never.
    The cluster is announced as ready once all processes are and every frontend has heard of it.
    `grace`: seconds that requests get to finish after the first signal. No limit counts time in which this process did not run.
    """

    def __init__(
        self,
        offers: Choice,
        run_dir: Path,
        audience: Audience,
        startup_timeout: float = 600.0,
        hang_timeout: float = 60.0,
        grace: float = 25.0,
    ) -> None:
        self._offers = offers
        self._serving = offers.now()
        self._run_dir = run_dir
        self._audience = audience
        self._startup_timeout = startup_timeout
        self._hang_timeout = hang_timeout
        self._grace = grace
        self._clock = Clock()
        self._children = {spec.name: Child(spec, audience.line, lambda: self._clock.now) for spec in self._serving.specs}
        self._intake = Intake()
        self._change: Changeover | None = None
        self._changes = 0
        self._drain_ends: float | None = None
        self._started = time.time()
        self._begun = self._clock.now
        self._was_ready = False
        self._ready_since: float | None = None
        self._code = 0
        self._changed = True
        self._published = 0.0
        self._signals = 0
        self._interrupted = False
        self._stop_seconds: float | None = None
        self._ending: Ending | None = None
        self._drained = False

    def run(self) -> int:
        """Start everything and stay until everything has ended. Returns the exit code.

        0: it was ready and then stopped in order. 1: it failed, or `cluster stop` came before it was ready.
        130: a signal before it was ready, or a second signal that killed what still ran.
        """
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        previous = {signum: signal.signal(signum, self._on_signal) for signum in SIGNALS}
        death_read, death_write = os.pipe()
        try:
            self._serve(context, death_read)
        finally:
            self._kill_all()
            for signum, handler in previous.items():
                signal.signal(signum, handler)
            os.close(death_read)
            os.close(death_write)
            context.term()
        return self._code

    def _serve(self, context: zmq.Context[Any], death_fd: int) -> None:
        inbox: Inbox[ToSupervisor] = Inbox(context, self._run_dir, SUPERVISOR, ToSupervisor)
        feed = Feed(context, self._run_dir, CLUSTER_FEED)
        control = ControlServer(context, self._run_dir)
        try:
            for child in self._children.values():
                child.start(death_fd)
            while self._stop_seconds is None or any(child.running for child in self._children.values()):
                inbox.wait(TICK_SECONDS)
                self._tick(inbox.drain(), control, feed, death_fd)
        finally:
            inbox.close()
            feed.close()
            control.close()

    def _tick(self, messages: list[ToSupervisor], control: ControlServer, feed: Feed, death_fd: int) -> None:
        now = self._clock.look()
        for message in messages:
            child = self._children.get(message.name)
            if isinstance(message, Hung):
                self._kill(child, message)
            else:
                self._changed |= child is not None and child.note(message)
        self._answer(control, now)
        self._heed_signals(now)
        self._kill_hung(now)
        for child in self._children.values():
            if child.reap(now):
                self._died(child, now)
        if self._ending is not None:
            self._ending.advance(now)
        else:
            self._advance_drain(now)
            self._advance_change(now, death_fd)
            self._restart_due(now, death_fd)
        self._publish(feed, now)

    # Deaths and restarts

    def _kill_hung(self, now: float) -> None:
        if self._stop_seconds is not None:
            return
        for child in self._children.values():
            if child.kill_if_lingering(now):
                log.error("%s has said that it ends and has not ended; killing it", child.name)
            elif self._hang_timeout > 0 and child.kill_if_hung(now, self._hang_timeout):
                log.error("%s has not been heard from for %g s or more; killing it", child.name, self._hang_timeout)

    def _kill(self, child: Child | None, hung: Hung) -> None:
        if child is not None and self._stop_seconds is None and child.kill_incarnation(hung.incarnation):
            log.error("%s hangs: %s; killing it", child.name, hung.reason)

    def _died(self, child: Child, now: float) -> None:
        self._changed = True
        if self._stop_seconds is not None or (self._changing is not None and self._changing.died(child, now)):
            return
        if not self._was_ready:
            self._fail(f"{child.name} ended while starting ({child.last_exit}): {child.cause}")
        elif child.hopeless:
            self._fail(f"{child.name} keeps dying ({child.last_exit}); giving up: {child.cause}")
        else:
            pause = child.schedule_restart(now)
            log.error("%s died (%s); starting it again in %.1f s", child.name, child.last_exit, pause)

    def _restart_due(self, now: float, death_fd: int) -> None:
        for child in self._children.values():
            if child.restart_at is not None and now >= child.restart_at:
                child.start(death_fd)
                self._changed = True
        if not self._was_ready and now - self._begun > self._startup_timeout:
            self._fail(f"not ready after {self._startup_timeout:.0f} s: {self._state(now).reason}")

    def _fail(self, message: str) -> None:
        self._code = 1
        self._audience.failed(message)
        self._begin_stop(STAGE_SECONDS)

    def _stop_asked(self, seconds: float, code: int) -> None:
        """An ordered stop; `code` is the exit code when it comes before the cluster was ready."""
        if self._stop_seconds is None and not self._was_ready:
            self._code = code
            self._audience.failed("stopped before it was ready")
        self._begin_stop(seconds)

    # Changes

    @property
    def _changing(self) -> Changeover | None:
        return None if self._change is None or self._change.over else self._change

    def _begin_change(self, kind: str, options: ModelOptions, wait: float | None, now: float) -> Declined | None:
        if refusal := self._refusal():
            return Declined(refusal)
        try:
            after = self._offers.offer(options) if kind == RELOAD else self._offers.now()
        except LauncherError as error:
            return Declined(str(error))
        self._changes += 1
        order = Order(number=self._changes, kind=kind, before=self._serving, after=after, wait=wait, load_seconds=self._startup_timeout)
        log.info("%s to %s", kind, after.model)
        self._change, self._changed = Changeover(order, self._children, self._intake, now), True
        return None

    def _cancel(self, now: float) -> Declined | None:
        change = self._changing
        if change is None:
            return Declined("no reload is going on")
        if refusal := change.cancel(now):
            return Declined(refusal)
        log.info("the reload to %s is cancelled", change.order.after.model)
        self._changed = True
        return None

    def _refusal(self) -> str | None:
        """Why nothing can be changed now."""
        if self._stop_seconds is not None or self._drain_ends is not None:
            return "the cluster is stopping"
        if self._changing is not None:
            hint = "; it is taken back with `cluster reload --cancel`" if self._changing.order.kind == RELOAD else ""
            return f"a {self._changing.order.kind} is going on ({self._changing.phase}){hint}"
        return None if self._was_ready else "the cluster has not been ready yet"

    def _advance_change(self, now: float, death_fd: int) -> None:
        change = self._changing
        if change is None:
            return
        before = change.told()
        change.advance(now, death_fd, self._left(now))
        self._changed |= change.told() != before
        if change.fatal:
            self._fail(change.fatal)
        elif change.over:
            log.info("the %s is over%s", change.order.kind, f" and failed: {change.error}" if change.error else "")
        if self._serving is not change.serving:
            self._serving = change.serving
            self._offers.adopt()

    def _left(self, now: float) -> Unfinished | None:
        return unfinished((child.state(now, False) for child in self._children.values()), self._intake.number)

    # Stopping

    def _advance_drain(self, now: float) -> None:
        """Stop when everything has finished, or its time is over."""
        if self._drain_ends is None:
            return
        left = self._left(now)
        if left is not None and not left:
            self._begin_stop(STAGE_SECONDS)
        elif now >= self._drain_ends:
            log.warning("requests that have not finished in time are cut off: %s", left)
            self._begin_stop(CUT_SECONDS)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _heed_signals(self, now: float) -> None:
        """The first one lets requests finish, within `grace`; the second one kills."""
        if self._signals and self._stop_seconds is None and not self._interrupted:
            self._signals, self._interrupted = 0, True
            self._finish(self._grace, now, INTERRUPTED)
        elif self._signals:
            self._code = self._code or INTERRUPTED
            self._kill_all()

    def _finish(self, wait: float, now: float, code: int) -> None:
        """Refuse new requests, and stop once all others have finished or had `wait` seconds. Nothing takes it back. `code`: see `_stop_asked`."""
        if self._was_ready:
            self._intake.drain(True, OPERATOR)
            self._drain_ends, self._changed = min(now + wait, self._drain_ends or math.inf), True
        else:
            self._stop_asked(STAGE_SECONDS, code)

    def _begin_stop(self, seconds: float) -> None:
        if self._stop_seconds is None:
            left = self._left(self._clock.now)
            self._drained = not self._was_ready or (left is not None and not left)
            self._stop_seconds, self._ending, self._changed = seconds, Ending(self._children.values(), seconds), True

    def _kill_all(self) -> None:
        for child in self._children.values():
            child.kill()
            while child.running:
                if not child.reap(self._clock.look()):
                    time.sleep(0.01)

    # Telling

    def _answer(self, control: ControlServer, now: float) -> None:
        while (command := control.receive()) is not None:
            control.reply(self._obeyed(command, now) or self._state(now))

    def _obeyed(self, command: Command, now: float) -> CommandReply | None:
        """None where the answer is the state."""
        match command:
            case StopCommand():
                self._stop_asked(max(0.0, command.deadline), 1)
                return Stopping(os.getpid())
            case DrainCommand() | ResumeCommand():
                return self._let_in(isinstance(command, ResumeCommand))
            case ReloadCommand():
                return self._begin_change(RELOAD, command.options, command.wait, now)
            case RestartCommand():
                return self._begin_change(RESTART, ModelOptions(), command.wait, now)
            case CancelCommand():
                return self._cancel(now)
            case FinishCommand():
                self._finish(math.inf if command.wait is None else command.wait, now, 1)
                return None
            case _:
                return None

    def _let_in(self, on: bool) -> Declined | None:
        if self._stop_seconds is not None or (on and self._drain_ends is not None):
            return Declined("the cluster is stopping")
        if self._intake.draining == on:
            log.info("new requests are %s", "taken again" if on else "refused")
        self._intake.drain(not on, OPERATOR)
        self._changed = True
        return None

    def _publish(self, feed: Feed, now: float) -> None:
        if not self._changed and now - self._published < PUBLISH_SECONDS:
            return
        self._changed, self._published = False, now
        state = self._state(now)
        feed.publish(state)
        self._audience.state(state)
        if state.phase not in UP:
            self._ready_since = None
        elif not self._was_ready:
            self._ready_since = self._ready_since or now
            self._was_ready = now - self._ready_since >= SETTLE_SECONDS and all_let_in(state.processes)
            if self._was_ready:
                self._audience.ready(state)

    def _state(self, now: float) -> ClusterState:
        stopping = self._stop_seconds is not None
        processes = [child.state(now, stopping) for child in self._children.values()]
        phase, reason = (STOPPING, "stopping") if stopping else standing(processes, self._intake, self._changing)
        intake = self._intake
        return ClusterState(
            ready=phase == READY,
            phase=phase,
            reason=reason,
            model=self._serving.model,
            started=self._started,
            processes=processes,
            stop_seconds=self._stop_seconds,
            drained=self._drained,
            created=self._serving.created,
            serving=intake.serving,
            intake=intake.number,
            draining=intake.draining,
            holding=intake.holding,
            cutting=intake.cutting,
            change=None if self._change is None else self._change.told(),
        )
