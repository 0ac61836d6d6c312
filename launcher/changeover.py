"""From one set of processes to the next while requests wait: a reload, or a restart of everything.

A reload has the frontends hold what has not begun, waits for what has, ends tokenizers, scheduler and worker together, starts the new ones together,
and lets the held requests go. When a new process ends before all are ready, or they do not get on, or somebody cancels it, those before are started
again. A restart waits for nobody: the same processes begin again with the requests that were running, as after a death. Then the frontends follow
one by one; the only one refuses new requests until it has finished those that it has.
"""

import logging
import math
from collections.abc import Mapping

import msgspec

from launcher.child import Child
from launcher.intake import Intake, Unfinished
from launcher.rolling import Rolling
from launcher.serving import Serving
from launcher.specs import FRONTENDS
from messages.change import DONE, ENDING, FAILED, LOADING, RETURNING, ROLLING, WAITING, Change

log = logging.getLogger(__name__)

RELOAD, RESTART = "reload", "restart"
END_SECONDS = 5.0
"""How long a process may take to end; then it is killed."""
CUT_SECONDS = 3.0
"""How long frontends have to end what is not waited for."""
CANCELLED = "it was cancelled"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The `number`th change, from `before` to `after`. `wait`: seconds for which running requests are waited for, None: as long as they take.

    `load_seconds`: how long processes that start may take without getting on.
    """

    number: int
    kind: str
    before: Serving
    after: Serving
    wait: float | None
    load_seconds: float


class Changeover:
    """`advance` it again and again until it is `over`. `serving`: what requests get now. Times are in seconds of the children's clock.

    `fatal`: what was served before does not come back, and why.
    """

    def __init__(self, order: Order, children: Mapping[str, Child], intake: Intake, now: float) -> None:
        self.order = order
        self.serving = order.before
        self.error = self.fatal = ""
        self.phase = WAITING
        self._note = ""
        self._intake = intake
        self._engine = [child for child in children.values() if child.spec.stage != FRONTENDS]
        self._frontends = [child for child in children.values() if child.spec.stage == FRONTENDS]
        self._rolling: Rolling | None = None
        self._ends: float | None = None
        self._until = now + (order.wait or 0.0)
        intake.hold(True)
        if order.kind == RESTART:
            self._end(ENDING, now)

    @property
    def over(self) -> bool:
        return self.phase in (DONE, FAILED)

    def told(self) -> Change:
        return Change(
            number=self.order.number, kind=self.order.kind, phase=self.phase, model=self.order.after.model, note=self._note, error=self.error
        )

    def advance(self, now: float, death_fd: int, left: Unfinished | None) -> None:
        """`left`: the requests there are, None where that is not known."""
        if self.phase == WAITING:
            self._wait(now, left)
        elif self._rolling is not None:
            self._roll(self._rolling, now, death_fd)
        elif self.phase == ROLLING:
            self._empty(now, left)
        elif self._ends is not None:
            self._end_all(now, death_fd)
        else:
            self._load(now)

    def died(self, child: Child, now: float) -> bool:
        """True when that was foreseen, or ends the attempt to load: nobody else is to do anything about it."""
        if child not in self._engine:
            return self._rolling is not None and self._rolling.expects(child)
        if self._ends is not None:
            return True
        if self.phase == LOADING and self.order.kind == RELOAD:
            self._fail(f"{child.name} ended while starting ({child.last_exit}): {child.cause}", now)
            return True
        return False

    def cancel(self, now: float) -> str:
        """Go back to what was served before. Why that cannot be done, or ""; one that goes back already does so."""
        if self.order.kind != RELOAD:
            return f"a {self.order.kind} cannot be cancelled"
        if self.phase == WAITING:
            self.phase, self.error, self._note = FAILED, CANCELLED, ""
            self._intake.hold(False)
        elif self.phase == ENDING:  # what ends cannot be kept from it
            self.phase, self.error = RETURNING, CANCELLED
        elif self.phase == LOADING:
            self._return(CANCELLED, now)
        return ""

    # Running requests

    def _wait(self, now: float, left: Unfinished | None) -> None:
        self._note = "" if left is None else f"{left}"
        if left is not None and not left.running:
            self._end(ENDING, now)
        elif self.order.wait is not None and now >= self._until:
            self._intake.cut()
            if now >= self._until + CUT_SECONDS:
                self._end(ENDING, now)

    # Tokenizers, scheduler, worker

    def _end(self, phase: str, now: float) -> None:
        """From here on nothing that has begun goes on, unless it is a restart: then the model is the same."""
        self.phase, self._note, self._ends = phase, "", now + END_SECONDS
        self._intake.serving += self.order.kind == RELOAD
        for child in self._engine:
            child.retire()

    def _end_all(self, now: float, death_fd: int) -> None:
        alive = [child for child in self._engine if child.running]
        for child in alive:
            if self._ends is not None and now >= self._ends:
                child.kill()
        if alive:
            return
        self._ends = None
        specs = {spec.name: spec for spec in (self.order.before if self.error else self.order.after).specs}
        for child in self._engine:
            child.become(specs[child.name])
            child.start(death_fd)
        if not self.error:
            self.phase = LOADING

    def _load(self, now: float) -> None:
        waiting = [child for child in self._engine if not child.ready]
        if not waiting:
            self._loaded(now)
        elif now - max(child.moved for child in waiting) > self.order.load_seconds:
            why = f"no progress for {self.order.load_seconds:.0f} s: {', '.join(child.doing for child in waiting)}"
            if self.phase == LOADING and self.order.kind == RELOAD:
                self._fail(why, now)
            else:
                before = f" failed ({self.error}), and what was served before does not come back" if self.error else " failed"
                self.phase, self.fatal = FAILED, f"the {self.order.kind}{before}: {why}"
                self.error = self.error or why

    def _fail(self, why: str, now: float) -> None:
        log.error("the %s has failed, what was served before comes back: %s", self.order.kind, why)
        self._return(why, now)

    def _return(self, why: str, now: float) -> None:
        self.error = why
        self._end(RETURNING, now)

    def _loaded(self, now: float) -> None:
        self.phase = FAILED if self.error else DONE
        if not self.error:
            self.serving = self.order.after
            specs = {spec.name: spec for spec in self.serving.specs}
            for child in self._frontends:
                child.become(specs[child.name])
        self._intake.hold(False)
        if self.order.kind == RESTART:
            self.phase = ROLLING
            if len(self._frontends) > 1:
                self._begin_rolling(self.order.wait, now)
            else:
                self._intake.drain(True, RESTART)
                self._until = now + (math.inf if self.order.wait is None else self.order.wait)
                self._empty(now, None)

    # Frontends

    def _empty(self, now: float, left: Unfinished | None) -> None:
        """The only one finishes what it has before it leaves the port, which answers so long that others are refused."""
        names = ", ".join(child.name for child in self._frontends)
        self._note = f"{names}, once its requests have finished: {left or 'asking it'}"
        if (left is not None and not left) or now >= self._until:
            self._begin_rolling(0.0, now)

    def _begin_rolling(self, wait: float | None, now: float) -> None:
        self._rolling = Rolling(self._frontends, wait, self.order.load_seconds, now)
        self._note = self._rolling.name

    def _roll(self, rolling: Rolling, now: float, death_fd: int) -> None:
        if rolling.name:
            rolling.advance(now, death_fd)
        if rolling.name:
            self._note = rolling.name
        else:
            self.phase = DONE
            self._intake.drain(False, RESTART)
