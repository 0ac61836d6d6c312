"""A change of what is served: its options, its steps in time, and what people are told of it."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from launcher import changeover, rolling
from launcher.changeover import RELOAD, RESTART, Changeover, Order
from launcher.child import Child
from launcher.cli import build_parser
from launcher.drain import drain, waited
from launcher.errors import LauncherError
from launcher.intake import Intake, Unfinished, unfinished
from launcher.reload import changes_from, told
from launcher.rolling import Rolling
from launcher.rundir import Cluster, ClusterInfo
from launcher.serving import Offers, Serving, changed
from launcher.specs import ClusterOptions, ProcessSpec, cluster_specs
from launcher.status import CUT_SECONDS, run_stop, status_table
from messages.change import Change, ModelOptions
from messages.cluster import BEGUN, DEAD, INTAKE, LOADING, OPEN, READY, ClusterState, ProcessState
from transport.lifetime import ProcessArgs

OPTIONS = ClusterOptions(model_path="/", model_name="m", port=8000, chat_template="/t", max_queue=100, frontends=2)
NAMES = ("frontend0", "frontend1", "tokenizer0", "scheduler", "worker0")


class FakeChild:
    """One that does what it is told at once, unless it is `deaf`, and says that it is ready when the test says so."""

    def __init__(self, spec: ProcessSpec, done: list[str]) -> None:
        self.spec, self.done = spec, done
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
        assert bench.advance(61.0) == []
        assert bench.advance(61.2) == ENDS
    assert bench.where == ("returning", "old", True)
    assert bench.advance(62.0) == starts("old")
    assert not bench.dies("scheduler", 63.0)  # now as ever: it is started again, or the cluster ends
    bench.children["scheduler"].running = True
    assert bench.advance(1000.0) == []
    bench.ready()
    bench.advance(1001.0)
    assert (bench.where, bench.intake.serving) == (("failed", "old", False), 2)
    expected = "worker0 ended while starting (exit code 3): no weights" if how == "dies" else "not ready after 60 s"
    assert bench.change.told() == Change(number=1, kind="reload", phase="failed", model="new", error=expected)


def test_a_restart_waits_for_nobody_and_rolls_over_the_frontends() -> None:
    bench = Bench(RESTART, wait=7.0)
    assert (bench.done, bench.where, bench.intake.serving) == (ENDS, ("ending", "old", True), 0)
    bench.done.clear()
    assert bench.advance(0.1) == starts("new")
    assert not bench.dies("worker0", 0.2)
    bench.children["worker0"].running = True
    assert bench.advance(100.0) == []
    bench.ready()
    assert bench.advance(101.0) == []
    first, second = bench.children["frontend0"], bench.children["frontend1"]
    assert (bench.where[0], bench.intake.holding, first.leave_seconds, second.leave_seconds) == ("rolling", False, 7.0, None)
    first.deaf = True
    assert bench.advance(101.1 + rolling.NOTICE_SECONDS) == ["end frontend0"]
    assert bench.advance(108.0) == []
    assert bench.advance(102.0 + 7.0 + rolling.KILL_SECONDS) == ["kill frontend0"]
    assert bench.dies("frontend0", 115.0)
    assert bench.advance(115.0) == ["start new frontend0"]
    assert not bench.dies("frontend0", 115.1)
    first.running = first.ready = True
    bench.advance(116.0)
    assert second.leave_seconds == 7.0
    assert not bench.dies("frontend1", 116.1)  # by itself: the supervisor starts it again
    assert bench.advance(117.0) == []
    second.running = second.ready = True
    bench.advance(118.0)
    bench.advance(118.1)
    assert bench.where == ("done", "new", False)


@pytest.mark.parametrize("wait", [None, 5.0])
def test_the_only_frontend_finishes_what_it_has_before_it_leaves_the_port(wait: float | None) -> None:
    bench = Bench(RESTART, wait, frontends=1)
    bench.advance(0.1)
    bench.ready()
    bench.advance(1.0)
    assert (bench.where[0], bench.intake.draining) == ("rolling", True)
    bench.done.clear()
    for left in (None, Unfinished(1, 0), Unfinished(0, 1)):
        assert bench.advance(2.0, left) == []
    bench.advance(6.0, None if wait else Unfinished(0, 0))
    assert bench.children["frontend0"].leave_seconds == 0.0
    assert bench.advance(7.0) == ["end frontend0"]
    assert bench.advance(7.1) == ["start new frontend0"]
    bench.ready()
    bench.advance(8.0)
    bench.advance(8.1)
    assert (bench.change.over, bench.intake.draining) == (True, False)


def test_a_frontend_without_a_limit_may_take_as_long_as_it_likes() -> None:
    child = FakeChild(serving("m").specs[0], [])
    child.deaf = True
    rolls = Rolling([cast(Child, child)], None, 0.0)
    for now in (1.0, 1e6, 1e8):
        rolls.advance(now, -1)
    assert child.done == ["end frontend0"]


def state_of(name: str, phase: str = READY, gauges: dict[str, float] | None = None) -> ProcessState:
    return ProcessState(name=name, incarnation=1, pid=1, phase=phase, gauges=gauges or {})


def test_what_is_unfinished_is_known_when_every_living_frontend_has_told() -> None:
    one, two = state_of("frontend0", READY, {INTAKE: 2, OPEN: 5, BEGUN: 2}), state_of("frontend1", READY, {INTAKE: 2, OPEN: 1, BEGUN: 1})
    assert unfinished([one, two, state_of("worker0")], 2) == Unfinished(3, 3)
    assert unfinished([one, state_of("frontend1", DEAD)], 2) == Unfinished(2, 3)
    assert unfinished([one, state_of("frontend1", LOADING)], 2) is unfinished([one, two], 3) is None
    assert not unfinished([], 9)
    assert str(Unfinished(1, 2)) == "1 running, 2 queued"


def test_flags_count_their_changes() -> None:
    intake = Intake()
    for whom in ("one", "one", "two"):
        intake.drain(True, whom)
    intake.drain(False, "one")
    intake.hold(True)
    intake.hold(True)
    intake.cut()
    assert (intake.number, intake.draining, intake.holding, intake.cutting) == (3, True, True, True)
    intake.hold(False)
    intake.drain(False, "two")
    assert (intake.number, intake.draining, intake.holding, intake.cutting) == (6, False, False, False)


# Options


def test_what_is_not_given_stays_but_a_template_goes_with_its_model(tmp_path: Path) -> None:
    same = changed(msgspec.structs.replace(OPTIONS, chat_template=None), ModelOptions(block_size=8))
    assert (same.model_name, same.block_size, same.max_queue, same.created > 0) == ("m", 8, 100, True)
    other = changed(OPTIONS, ModelOptions(model_path=str(tmp_path), own_name="own"))
    assert (other.model_name, other.chat_template, other.model_path) == ("own", None, str(tmp_path))
    assert changed(msgspec.structs.replace(OPTIONS, named=True), ModelOptions(model_path="/", own_name="own")).model_name == "m"
    renamed = changed(OPTIONS, ModelOptions(model_path="/", own_name="own", model_name="chosen"))
    assert changed(renamed, ModelOptions(model_path="/", own_name="own")).model_name == "chosen"


def test_sizes_follow_the_kind_of_device() -> None:
    plain = msgspec.structs.replace(OPTIONS, chat_template=None)
    gpu = changed(plain, ModelOptions(device="cuda", max_slots=100))
    assert (gpu.max_slots, gpu.chunk_tokens, gpu.run_ahead) == (100, 8192, 3)
    assert changed(gpu, ModelOptions(device="cuda:1")).chunk_tokens == 8192
    assert changed(gpu, ModelOptions(device="cpu")).chunk_tokens == 128


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (ModelOptions(chunk_tokens=513), "--chunk-tokens 513 is over --max-step-tokens 512"),
        (ModelOptions(weights="fp8"), "--weights fp8 needs a GPU"),
        (ModelOptions(deterministic=True, kv_dtype="fp8"), "--deterministic on a CPU computes in float32"),
        (ModelOptions(model_path="/no/such"), "there is no /no/such"),
        (ModelOptions(chat_template="\0"), "there is no \0"),
        (ModelOptions(), "there is no /t"),
    ],
)
def test_changes_that_do_not_fit(changes: ModelOptions, message: str) -> None:
    with pytest.raises(LauncherError, match=message):
        changed(OPTIONS, changes)


def test_only_what_is_adopted_is_offered_again() -> None:
    adopted: list[str] = []
    options = msgspec.structs.replace(OPTIONS, chat_template=None)
    offers = Offers(options, lambda chosen: cluster_specs(chosen, "/run"), lambda chosen: adopted.append(chosen.model_name))
    assert offers.offer(ModelOptions(model_name="failed")).model == "failed"
    assert offers.now().model == "m"
    offers.adopt()
    assert offers.offer(ModelOptions(model_name="good")).model == "good"
    offers.adopt()
    assert (offers.now().model, adopted) == ("good", ["m", "good"])
    fronts = [spec.args for spec in offers.now().specs if spec.name.startswith("frontend")]
    assert {getattr(args, "most_held", 0) for args in fronts} == {50}


def reload_args(*arguments: str) -> argparse.Namespace:
    return build_parser("cluster").parse_args(["cluster", "reload", *arguments])


def test_only_options_that_are_given_are_sent(tmp_path: Path) -> None:
    assert changes_from(reload_args()) == ModelOptions()
    template = tmp_path / "template"
    template.write_text("")
    (tmp_path / "config.json").write_text("{}")
    arguments = ["--model", str(tmp_path), "--chat-template", str(template), "--target-itl", "50", "--prefix-cache", "off", "--threads", "1"]
    assert changes_from(reload_args(*arguments, "--served-model-name", "n", "--max-slots", "9")) == ModelOptions(
        model_path=str(tmp_path), own_name=tmp_path.name, model_name="n", chat_template=str(template), target_itl=0.05, prefix_cache=False, threads=1,
        max_slots=9,
    )  # fmt: skip
    with pytest.raises(LauncherError, match="there is no such file"):
        changes_from(reload_args("--model", "/no/such"))


# What people are told


def cluster_state(**fields: Any) -> ClusterState:
    processes = [state_of("worker0", LOADING)]
    return ClusterState(ready=False, phase=LOADING, reason="", model="m", started=0.0, processes=processes, **fields)


@pytest.mark.parametrize(
    ("phase", "text"),
    [
        ("waiting", "waiting for running requests: N"),
        ("ending", "ending what runs"),
        ("loading", "loading new: worker0 loading"),
        ("returning", "failed (why), going back: worker0 loading"),
        ("rolling", "restarting N"),
        ("done", "done"),
    ],
)
def test_progress_in_words(phase: str, text: str) -> None:
    assert told(Change(number=1, kind="reload", phase=phase, model="new", note="N", error="why"), cluster_state()) == text


def test_a_failed_change_is_in_the_status() -> None:
    cluster = Cluster(Path("/"), ClusterInfo(pid=1, host="", port=1, url="u", model="m", started=0.0))
    change = Change(number=1, kind="reload", phase="failed", model="new", error="why")
    assert "the last reload, to new, failed: why" in status_table(cluster, cluster_state(change=change))
    assert "failed" not in status_table(cluster, cluster_state())


def test_waiting_ends_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def answers(*_: object) -> ClusterState:
        asked.append(None)
        return cluster_state()

    monkeypatch.setattr("launcher.drain.ask", answers)
    cluster = Cluster(Path("/"), ClusterInfo(pid=1, host="", port=1, url="u", model="m", started=0.0))
    never: Callable[[ClusterState], str | None] = lambda state: "more"  # noqa: E731
    assert not waited(cluster, 0.0, never)
    assert waited(cluster, None, lambda state: None if len(asked) > 2 else "more")


def test_who_interrupts_a_drain_is_told_that_it_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("launcher.drain.ask", lambda *_: cluster_state())
    monkeypatch.setattr("launcher.drain.waited", interrupted)
    with pytest.raises(KeyboardInterrupt):
        drain(Cluster(Path("/"), ClusterInfo(pid=1, host="", port=1, url="u", model="m", started=0.0)), None)
    assert "cluster resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "finished", "code", "stopped"),
    [
        ([], True, 0, [10.0]),
        (["--timeout", "0"], True, 0, [0.0]),
        (["--drain"], True, 0, [None, CUT_SECONDS]),
        (["--drain", "--timeout", "30"], False, 3, [30.0, CUT_SECONDS]),
    ],
)
def test_a_stop_drains_first_where_it_is_asked_for(
    arguments: list[str], finished: bool, code: int, stopped: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was waited for, and what the rest of the requests got."""
    done: list[float | None] = []

    def drains(cluster: object, wait: float | None) -> bool:
        done.append(wait)
        return finished

    monkeypatch.setattr("launcher.status.choose_cluster", lambda port: None)
    monkeypatch.setattr("launcher.status.drain", drains)
    monkeypatch.setattr("launcher.status._stop", lambda cluster, timeout: done.append(timeout))
    assert run_stop(build_parser("cluster").parse_args(["cluster", "stop", *arguments])) == code
    assert done == stopped
