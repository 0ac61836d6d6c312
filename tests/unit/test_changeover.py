"""A reload or a restart in time: what is done when, what ends it, and what takes it back."""

from typing import cast

import msgspec
import pytest

from launcher import changeover, rolling
from launcher.changeover import RELOAD, RESTART, Changeover, Order
from launcher.child import Child
from launcher.intake import Intake, Unfinished
from launcher.rolling import Rolling
from launcher.serving import Serving
from launcher.specs import ProcessSpec
from messages.change import Change
from transport.lifetime import ProcessArgs

NAMES = ("frontend0", "frontend1", "tokenizer0", "scheduler", "worker0")


class FakeChild:
    """One that does what it is told at once, unless it is `deaf`, and says that it is ready, or how far it is, when the test says so."""

    def __init__(self, spec: ProcessSpec, done: list[str]) -> None:
        self.spec, self.done = spec, done
        self.doing, self.moved = f"{spec.name} loading", 0.0
        self.name, self.last_exit, self.cause = spec.name, "exit code 3", "no weights"
        self.running = self.ready = True
        self.deaf = False
        self.leave_seconds: float | None = None

    def _do(self, what: str) -> None:
        self.done.append(f"{what} {self.name}")

    def become(self, spec: ProcessSpec) -> None:
        self.spec = spec

    def start(self, death_fd: int) -> None:
        self._do(f"start {self.spec.args.run_dir}")
        self.running, self.ready, self.leave_seconds = True, False, None

    def retire(self) -> None:
        if self.running:
            self._do("end")
        self.running = self.running and self.deaf

    def kill(self) -> None:
        self._do("kill")
        self.running = False

    def kill_if_stuck(self, now: float, limit: float) -> None:
        if now - self.moved > limit:
            self.kill()


def serving(model: str) -> Serving:
    specs = [
        ProcessSpec(package="p", args=ProcessArgs(name=name, incarnation=0, run_dir=model), stage=number // 2 if number < 3 else number - 1)
        for number, name in enumerate(NAMES)
    ]
    return Serving(model=model, created=1, specs=specs)


class Bench:
    """A change from "old" to "new" over children that are ready; `advance` to a time."""

    def __init__(self, kind: str = RELOAD, wait: float | None = None, frontends: int = 2) -> None:
        self.done: list[str] = []
        before, self.intake = serving("old"), Intake()
        del before.specs[frontends:2]
        self.children = {spec.name: FakeChild(spec, self.done) for spec in before.specs}
        order = Order(number=1, kind=kind, before=before, after=serving("new"), wait=wait, load_seconds=60.0)
        self.change = Changeover(order, cast(dict[str, Child], self.children), self.intake, 0.0)

    def advance(self, now: float, left: Unfinished | None = None) -> list[str]:
        """What was done."""
        self.change.advance(now, -1, left)
        done = self.done[:]
        self.done.clear()
        return done

    def moves(self, name: str, now: float) -> None:
        self.children[name].moved = now

    def ready(self) -> None:
        for child in self.children.values():
            child.ready = True

    def dies(self, name: str, now: float) -> bool:
        self.children[name].running = self.children[name].ready = False
        return self.change.died(cast(Child, self.children[name]), now)

    @property
    def where(self) -> tuple[str, str, bool]:
        return self.change.phase, self.change.serving.model, self.intake.holding


ENDS = ["end tokenizer0", "end scheduler", "end worker0"]


def starts(model: str) -> list[str]:
    return [f"start {model} tokenizer0", f"start {model} scheduler", f"start {model} worker0"]


def test_a_reload_waits_until_nothing_runs_and_everybody_has_said_so() -> None:
    bench = Bench()
    assert bench.advance(1.0) == bench.advance(2.0, Unfinished(1, 5)) == []
    assert bench.where == ("waiting", "old", True)
    assert not bench.dies("worker0", 2.5)  # that is for the supervisor: the same one comes back
    bench.children["worker0"].running = True
    assert bench.advance(3.0, Unfinished(0, 5)) == ENDS
    assert (bench.where, bench.intake.serving) == (("ending", "old", True), 1)
    assert bench.advance(3.1) == starts("new")
    assert bench.advance(3.2) == []
    bench.ready()
    bench.advance(3.3)
    assert bench.where == ("done", "new", False)
    assert {child.spec.args.run_dir for child in bench.children.values()} == {"new"}


def test_running_requests_are_ended_when_their_time_is_over_and_deaf_processes_killed() -> None:
    bench = Bench(wait=10.0)
    bench.advance(9.9, Unfinished(1, 0))
    assert not bench.intake.cutting
    bench.advance(10.0, Unfinished(1, 0))
    assert bench.intake.cutting
    bench.children["worker0"].deaf = True
    assert bench.advance(10.1 + changeover.CUT_SECONDS, None) == ENDS  # whoever does not answer is not waited for
    assert bench.advance(14.0) == []
    assert bench.dies("tokenizer0", 14.0)
    assert bench.advance(14.0 + changeover.END_SECONDS) == ["kill worker0"]
    assert bench.advance(20.0) == starts("new")
    bench.ready()
    bench.advance(21.0)
    assert (bench.where, bench.intake.cutting) == (("done", "new", False), False)


@pytest.mark.parametrize("how", ["dies", "slow"])
def test_what_does_not_load_gives_way(how: str) -> None:
    bench = Bench()
    bench.advance(1.0, Unfinished(0, 0))
    bench.advance(1.1)
    if how == "dies":
        assert bench.dies("worker0", 2.0)
        assert bench.done == ["end tokenizer0", "end scheduler"]
        bench.done.clear()
    else:
        bench.moves("worker0", 30.0)  # it gets on, so it has time
        assert bench.advance(90.0) == []
        bench.children["worker0"].ready = True
        bench.moves("worker0", 91.0)  # but not those for whom one that is ready is no reason
        assert bench.advance(91.1) == ENDS
    assert bench.where == ("returning", "old", True)
    assert bench.advance(92.0) == starts("old")
    assert not bench.dies("scheduler", 93.0)  # now as ever: it is started again, or the cluster ends
    bench.children["scheduler"].running = True
    bench.moves("worker0", 150.0)
    assert bench.advance(210.0) == []
    bench.ready()
    bench.advance(210.1)
    assert (bench.where, bench.intake.serving) == (("failed", "old", False), 2)
    expected = "worker0 ended while starting (exit code 3): no weights" if how == "dies" else STUCK.format("tokenizer0 loading, scheduler loading")
    assert bench.change.told() == Change(number=1, kind="reload", phase="failed", model="new", error=expected)


STUCK = "no progress for 60 s: {}"
ALL = "tokenizer0 loading, scheduler loading, worker0 loading"


def test_what_does_not_come_back_either_ends_the_cluster() -> None:
    bench = Bench()
    bench.advance(1.0, Unfinished(0, 0))
    bench.advance(1.1)
    bench.dies("worker0", 2.0)
    bench.advance(3.0)
    assert bench.advance(60.0) == []
    assert bench.change.fatal == ""
    bench.advance(61.0)
    cause = "worker0 ended while starting (exit code 3): no weights"
    assert bench.change.fatal == f"the reload failed ({cause}), and what was served before does not come back: {STUCK.format(ALL)}"
    assert (bench.change.over, bench.change.told().error) == (True, cause)


def test_a_restart_that_does_not_come_back_ends_the_cluster() -> None:
    bench = Bench(RESTART)
    bench.advance(1.0)
    bench.advance(61.0)
    assert bench.change.fatal == f"the restart failed: {STUCK.format(ALL)}"


CANCELLED = Change(number=1, kind="reload", phase="returning", model="new", error="it was cancelled")


def test_a_reload_that_waits_is_cancelled_and_nothing_has_happened() -> None:
    bench = Bench(wait=5.0)
    bench.advance(5.0, Unfinished(1, 0))
    assert bench.intake.cutting
    assert bench.change.cancel(5.1) == ""
    assert bench.done == []
    assert (bench.where, bench.intake.cutting, bench.intake.serving) == (("failed", "old", False), False, 0)
    assert bench.change.told() == msgspec.structs.replace(CANCELLED, phase="failed")


@pytest.mark.parametrize("loading", [False, True], ids=["ends", "loads"])
def test_a_reload_is_cancelled_when_nothing_is_left_of_the_old_model(loading: bool) -> None:
    bench = Bench()
    bench.children["worker0"].deaf = not loading
    assert bench.advance(1.0, Unfinished(0, 0)) == ENDS
    if loading:
        assert bench.advance(1.1) == starts("new")
    assert bench.change.cancel(1.2) == ""
    assert bench.change.cancel(1.2) == "", "once is enough"
    assert bench.change.told() == CANCELLED
    bench.children["worker0"].running = False
    assert bench.advance(1.4) == [*(ENDS if loading else []), *starts("old")]
    assert not bench.dies("worker0", 1.5)  # now as ever: it is started again, or the cluster ends
    bench.children["worker0"].running = True
    bench.ready()
    bench.advance(1.7)
    assert bench.where == ("failed", "old", False)


def test_a_restart_is_not_cancelled() -> None:
    bench = Bench(RESTART)
    assert bench.change.cancel(1.0) == "a restart cannot be cancelled"
    assert bench.change.error == ""


def test_a_restart_waits_for_nobody_and_rolls_over_the_frontends() -> None:
    bench = Bench(RESTART, wait=7.0)
    assert (bench.done, bench.where, bench.intake.serving) == (ENDS, ("ending", "old", True), 0)
    bench.done.clear()
    assert bench.advance(0.1) == starts("new")
    assert not bench.dies("worker0", 0.2)
    bench.children["worker0"].running = True
    bench.moves("worker0", 50.0)
    assert bench.advance(100.0) == []
    bench.ready()
    assert bench.advance(101.0) == []
    assert bench.change.told().note == "frontend0"
    first, second = bench.children["frontend0"], bench.children["frontend1"]
    assert (bench.where[0], bench.intake.holding, first.leave_seconds, second.leave_seconds) == ("rolling", False, 7.0, None)
    first.deaf = True
    assert bench.advance(101.1 + rolling.NOTICE_SECONDS) == ["end frontend0"]
    assert bench.advance(108.0) == []
    assert bench.advance(102.0 + 7.0 + rolling.KILL_SECONDS) == ["kill frontend0"]
    assert bench.dies("frontend0", 115.0)
    assert bench.advance(115.0) == ["start new frontend0"]
    assert not bench.dies("frontend0", 115.1)
    first.running = True
    bench.moves("frontend0", 115.1)
    assert bench.advance(175.1) == []
    assert bench.advance(175.2) == ["kill frontend0"], "it does not come back"
    assert not bench.dies("frontend0", 175.3)
    first.running = first.ready = True
    bench.advance(176.0)
    assert second.leave_seconds == 7.0
    assert not bench.dies("frontend1", 176.1)  # by itself: the supervisor starts it again
    assert bench.advance(177.0) == []
    second.running = second.ready = True
    bench.advance(178.0)
    assert bench.where == ("done", "new", False)


@pytest.mark.parametrize("wait", [None, 5.0])
def test_the_only_frontend_finishes_what_it_has_before_it_leaves_the_port(wait: float | None) -> None:
    bench = Bench(RESTART, wait, frontends=1)
    bench.advance(0.1)
    bench.ready()
    bench.advance(1.0)
    assert (bench.where[0], bench.intake.draining) == ("rolling", True)
    assert bench.change.told().note == "frontend0, once its requests have finished: asking it"
    bench.done.clear()
    for left in (None, Unfinished(1, 0), Unfinished(0, 1)):
        assert bench.advance(2.0, left) == []
    bench.advance(6.0, None if wait else Unfinished(0, 0))
    assert bench.children["frontend0"].leave_seconds == 0.0
    assert bench.advance(7.0) == ["end frontend0"]
    assert bench.advance(7.1) == ["start new frontend0"]
    bench.ready()
    bench.advance(8.0)
    assert (bench.change.over, bench.intake.draining) == (True, False)


def test_a_frontend_without_a_limit_may_take_as_long_as_it_likes() -> None:
    child = FakeChild(serving("m").specs[0], [])
    child.deaf = True
    rolls = Rolling([cast(Child, child)], None, 60.0, 0.0)
    for now in (1.0, 1e6, 1e8):
        rolls.advance(now, -1)
    assert child.done == ["end frontend0"]
