"""The supervisor alone over its real sockets: draining, resuming, reloads, restarts, and who dies meanwhile."""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.drain import drain, finish
from launcher.errors import LauncherError
from launcher.rundir import Cluster, ClusterInfo
from messages.change import CancelCommand, Declined, DrainCommand, FinishCommand, ModelOptions, ReloadCommand, RestartCommand, ResumeCommand
from messages.cluster import READY, STALLED, ClusterState, Command, CommandReply, ProcessState, StopCommand
from tests.support.fake_cluster import FakeSpec
from tests.support.fake_process import replace
from tests.support.supervised import Fake, ask, fake, spec
from transport.command import NoAnswerError


def processes(run_dir: Path, model: str = "", frontends: int = 1, **worker: Any) -> list[FakeSpec]:
    front = [spec(run_dir, f"frontend{number}", 0) for number in range(frontends)]
    rest = [spec(run_dir, name, stage, model=model) for name, stage in (("tokenizer0", 1), ("scheduler", 2))]
    return [*front, *rest, spec(run_dir, "worker0", 3, model=model, **worker)]


@contextlib.contextmanager
def ready(run_dir: Path, **more: Any) -> Iterator[Fake]:
    """A cluster that is ready, and ends in order."""
    mine = more.pop("processes", processes(run_dir, "fake"))
    others: dict[str, dict[str, Any]] = {"new": {}, "bad": {"fail_starts": tuple(range(99))}, "slow": {"slow": 30.0}}
    number = sum(process.args.name.startswith("frontend") for process in mine)
    with fake(run_dir, *mine, others={name: processes(run_dir, name, number, **how) for name, how in others.items()}, **more) as cluster:
        cluster.until("ready")
        yield cluster


def has(run_dir: Path, opened: int, begun: int) -> None:
    """The frontends have so many requests, so many of which have begun."""
    replace(run_dir / "requests", f"{opened} {begun}")


def told(run_dir: Path, command: Command) -> ClusterState:
    answer = ask(run_dir, command)
    assert isinstance(answer, ClusterState), answer
    return answer


def refused(run_dir: Path, command: Command) -> str:
    answer = ask(run_dir, command)
    assert isinstance(answer, Declined), answer
    return answer.reason


def reload(name: str, wait: float | None = None) -> ReloadCommand:
    return ReloadCommand(options=ModelOptions(model_name=name), wait=wait)


def settled(cluster: Fake) -> ClusterState:
    """Once the last change is over and the cluster is ready."""
    return cluster.wait_for(lambda state: state.ready and state.change is not None and state.change.over)


def incarnations(state: ClusterState) -> dict[str, int]:
    return {process.name: process.incarnation for process in state.processes}


def changes(state: ClusterState) -> tuple[bool, bool, bool]:
    return state.draining, state.holding, state.cutting


def begun(cluster: Fake) -> list[str]:
    """What processes have said at their starts."""
    return [text for kind, text in cluster.events if kind == "line" and " begins " in text]


def stop(cluster: Fake) -> None:
    ask(cluster.run_dir, StopCommand(deadline=1.0))
    assert cluster.end() == 0


def handle(cluster: Fake) -> Cluster:
    return Cluster(cluster.run_dir, ClusterInfo(pid=cluster.process.pid, host="", port=1, url="", model="fake", started=0.0))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """`drain` and `finish` wait for answers as long as we do."""

    def asked(run_dir: Path, command: Command) -> CommandReply:
        try:
            return ask(run_dir, command)
        except NoAnswerError as error:
            raise LauncherError(str(error)) from error

    monkeypatch.setattr("launcher.drain.ask", asked)


@pytest.fixture(scope="module")
def shared() -> Iterator[Fake]:
    with tempfile.TemporaryDirectory(prefix="pw-") as folder, ready(Path(folder), processes=processes(Path(folder), "fake", frontends=2)) as cluster:
        yield cluster
        stop(cluster)


@pytest.fixture
def cluster(shared: Fake) -> Fake:
    """One that is ready, serves "fake" and has no requests."""
    has(shared.run_dir, 0, 0)
    told(shared.run_dir, ResumeCommand())
    shared.wait_for(lambda state: state.ready)
    if shared.state().model != "fake":
        told(shared.run_dir, reload("fake"))
        settled(shared)
    return shared


def test_draining_waits_for_what_there_is_and_is_undone(cluster: Fake) -> None:
    before, run_dir = incarnations(cluster.state()), cluster.run_dir
    has(run_dir, 5, 3)
    for _ in range(2):
        state = told(run_dir, DrainCommand())
        assert (state.ready, state.phase, changes(state)) == (False, "draining", (True, False, False))
    cluster.wait_for(lambda state: state.reason == "draining: 6 running, 4 queued")  # both frontends say the same
    assert not drain(handle(cluster), 0.0)
    os.kill(cluster.one("worker0").pid, signal.SIGKILL)  # what dies meanwhile comes back
    cluster.wait_for(lambda state: incarnations(state)["worker0"] == before["worker0"] + 1 and state.phase == "draining")
    has(run_dir, 0, 0)
    assert drain(handle(cluster), None)
    state = told(run_dir, ResumeCommand())
    assert (state.ready, state.reason, changes(state)) == (True, "", (False, False, False))
    assert told(run_dir, ResumeCommand()).intake == state.intake


def test_a_frontend_that_has_not_heard_of_it_may_still_take_requests(cluster: Fake) -> None:
    pid = cluster.one("frontend1").pid
    os.kill(pid, signal.SIGSTOP)
    told(cluster.run_dir, DrainCommand())
    assert not drain(handle(cluster), 0.5)
    os.kill(pid, signal.SIGCONT)
    assert drain(handle(cluster), None)


def test_a_reload_lets_what_runs_finish_and_changes_all_but_the_frontends(cluster: Fake) -> None:
    before, serving, run_dir = incarnations(cluster.state()), cluster.state().serving, cluster.run_dir
    has(run_dir, 2, 1)
    state = told(run_dir, reload("new"))
    assert (state.phase, state.model, state.serving, changes(state)) == ("changing", "fake", serving, (False, True, False))
    cluster.wait_for(lambda state: state.reason == "reload to new: waits for what runs (2 running, 2 queued)")
    assert "a reload is going on" in refused(run_dir, reload("new"))
    os.kill(cluster.one("worker0").pid, signal.SIGKILL)  # the same one comes back, for what runs
    cluster.wait_for(lambda state: incarnations(state)["worker0"] == before["worker0"] + 1 and state.phase == "changing")
    has(run_dir, 1, 0)
    state = settled(cluster)
    assert (state.model, state.serving, changes(state)) == ("new", serving + 1, (False, False, False))
    rises = {"frontend0": 0, "frontend1": 0, "tokenizer0": 1, "scheduler": 1, "worker0": 2}
    assert incarnations(state) == {name: before[name] + more for name, more in rises.items()}
    assert state.change is not None
    assert (state.change.phase, state.change.error) == ("done", "")
    worker = incarnations(state)["worker0"]
    while f"worker0 begins {worker} new" not in (said := begun(cluster)):
        cluster.until("line")
    assert f"worker0 begins {worker - 1} fake" in said

    has(run_dir, 3, 2)  # and back, without waiting for anybody
    told(run_dir, reload("fake", wait=0.0))
    assert settled(cluster).model == "fake"
    assert (run_dir / "requests").read_text() == "0 0"


def test_a_model_that_cannot_be_loaded_gives_way_to_the_old_one(cluster: Fake) -> None:
    assert refused(cluster.run_dir, reload("none")) == "there is no none"
    told(cluster.run_dir, reload("bad"))
    state = settled(cluster)
    assert state.change is not None
    assert (state.model, state.change.phase, state.change.model) == ("fake", "failed", "bad")
    assert state.change.error == "worker0 ended while starting (exit code 3): RuntimeError: the weights are not there"
    told(cluster.run_dir, reload("slow"))
    cluster.wait_for(lambda state: state.change is not None and state.change.phase == "loading" and one(state, "worker0").phase == "loading")
    os.kill(cluster.one("worker0").pid, signal.SIGKILL)
    state = settled(cluster)
    assert state.change is not None
    assert "worker0 ended while starting (killed by SIGKILL)" in state.change.error
    assert state.model == "fake"


def test_a_reload_is_taken_back_while_it_waits_and_while_it_loads(cluster: Fake) -> None:
    run_dir, serving = cluster.run_dir, cluster.state().serving
    assert refused(run_dir, CancelCommand()) == "no reload is going on"
    has(run_dir, 1, 1)
    before = incarnations(cluster.state())
    told(run_dir, reload("new"))
    state = told(run_dir, CancelCommand())
    assert (changes(state), state.serving, incarnations(state)) == ((False, False, False), serving, before)
    assert state.change is not None
    assert (state.change.phase, state.change.error) == ("failed", "it was cancelled")
    has(run_dir, 0, 0)
    told(run_dir, reload("slow"))
    cluster.wait_for(lambda state: state.change is not None and state.change.phase == "loading" and one(state, "worker0").phase == "loading")
    assert "`cluster reload --cancel`" in refused(run_dir, reload("new"))
    assert told(run_dir, CancelCommand()).holding
    state = settled(cluster)
    assert state.change is not None
    assert (state.model, state.change.error, changes(state)) == ("fake", "it was cancelled", (False, False, False))


def one(state: ClusterState, name: str) -> ProcessState:
    return next(process for process in state.processes if process.name == name)


def test_a_restart_starts_everything_again_and_one_frontend_after_the_other(cluster: Fake) -> None:
    before, serving = incarnations(cluster.state()), cluster.state().serving
    has(cluster.run_dir, 3, 2)  # they pause
    told(cluster.run_dir, RestartCommand(wait=5.0))
    both: list[bool] = []

    def done(state: ClusterState) -> bool:
        both.append(all(one(state, name).phase not in (READY, STALLED) for name in ("frontend0", "frontend1")))
        return state.ready and state.change is not None and state.change.over

    state = cluster.wait_for(done)
    assert not any(both)
    assert incarnations(state) == {name: number + 1 for name, number in before.items()}
    assert (state.serving, changes(state)) == (serving, (False, False, False))
    assert all(process.leave_seconds is None for process in state.processes)


def test_a_drain_during_the_start_holds_from_then_on_until_a_signal_ends_it(run_dir: Path) -> None:
    with fake(run_dir, *processes(run_dir, held=True), grace=60.0) as cluster:
        cluster.until("line")
        state = told(run_dir, DrainCommand())
        assert (state.ready, state.phase in ("starting", "loading")) == (False, True)
        assert "not been ready" in refused(run_dir, reload("new"))
        (run_dir / "go").touch()
        cluster.until("ready")  # its processes are: it has started
        assert cluster.state().phase == "draining"
        assert told(run_dir, ResumeCommand()).ready
        has(run_dir, 2, 1)
        cluster.process.send_signal(signal.SIGTERM)
        cluster.wait_for(lambda state: state.reason == "draining: 1 running, 1 queued")
        assert [refused(run_dir, command) for command in (ResumeCommand(), reload("new"), RestartCommand())] == ["the cluster is stopping"] * 3
        has(run_dir, 0, 0)
        assert cluster.end() == 0


@pytest.mark.parametrize("second", [False, True], ids=["one", "two"])
def test_the_first_signals_grace_is_bounded_and_the_second_one_kills(run_dir: Path, second: bool) -> None:
    with ready(run_dir, grace=60.0 if second else 0.5) as cluster:
        has(run_dir, 2, 1)
        began = time.monotonic()
        cluster.process.send_signal(signal.SIGTERM)
        if second:
            cluster.wait_for(lambda state: state.draining)
            cluster.process.send_signal(signal.SIGTERM)
        assert cluster.end() == (130 if second else 0)
        assert time.monotonic() - began < 18.0  # less than without `grace`
        assert any(kind == "state" and text.startswith("draining") for kind, text in cluster.events)


def test_a_stop_that_lets_all_finish_is_not_taken_back(run_dir: Path) -> None:
    """Not by `cluster resume`, and not by the end of the command that asked for it."""
    with ready(run_dir) as cluster:
        has(run_dir, 2, 1)
        assert changes(told(run_dir, FinishCommand())) == (True, False, False)
        cluster.wait_for(lambda state: state.reason == "draining: 1 running, 1 queued")
        assert [refused(run_dir, command) for command in (ResumeCommand(), reload("new"))] == ["the cluster is stopping"] * 2
        assert cluster.state().draining
        last = cluster.one("worker0").pid
        os.kill(last, signal.SIGSTOP)  # the end waits for it until it has been seen
        has(run_dir, 0, 0)
        assert finish(handle(cluster), None)
        with contextlib.suppress(ProcessLookupError):
            os.kill(last, signal.SIGCONT)
        assert cluster.end() == 0


def test_a_stop_that_lets_all_finish_may_be_given_less_time(run_dir: Path) -> None:
    with ready(run_dir) as cluster:
        has(run_dir, 1, 1)
        told(run_dir, FinishCommand())
        assert not finish(handle(cluster), 0.3)
        assert cluster.end() == 0


@pytest.mark.slow
def test_what_does_not_come_back_after_a_failed_reload_ends_the_cluster_with_a_sentence(run_dir: Path) -> None:
    """The new model does not load, and then the old one hangs when it is started again."""
    with ready(run_dir, processes=processes(run_dir, "fake", hang_starts=(3,)), startup_timeout=10.0) as cluster:
        told(run_dir, reload("bad"))
        message = cluster.until("failed")
        assert message.startswith("the reload failed (worker0 ended while starting (exit code 3): RuntimeError: the weights are not there), and what")
        assert "does not come back: no progress for 10 s: worker0 " in message
        assert cluster.end() == 1


def test_a_stop_in_the_middle_of_a_reload(run_dir: Path) -> None:
    with ready(run_dir) as cluster:
        told(run_dir, reload("slow"))
        cluster.wait_for(lambda state: state.change is not None and state.change.phase == "loading")
        stop(cluster)
