"""What may be changed, and what people are told of a change."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from launcher.cli import build_parser
from launcher.drain import drain, finish, waited
from launcher.errors import LauncherError
from launcher.intake import Intake, Unfinished, all_let_in, unfinished
from launcher.reload import changes_from, run_reload, told
from launcher.rundir import Cluster, ClusterInfo
from launcher.serving import Offers, changed
from launcher.specs import ClusterOptions, cluster_specs
from launcher.status import CUT_SECONDS, run_stop, status_table
from messages.change import Change, ModelOptions
from messages.cluster import BEGUN, DEAD, INTAKE, LETS_IN, LOADING, OPEN, READY, ClusterState, ProcessState

OPTIONS = ClusterOptions(model_path="/", model_name="m", port=8000, chat_template="/t", max_queue=100, frontends=2)
CLUSTER = Cluster(Path("/"), ClusterInfo(pid=1, host="", port=1, url="u", model="m", started=0.0))


def state_of(name: str, phase: str = READY, gauges: dict[str, float] | None = None) -> ProcessState:
    return ProcessState(name=name, incarnation=1, pid=1, phase=phase, gauges=gauges or {})


def test_what_is_unfinished_is_known_when_every_living_frontend_has_told() -> None:
    one, two = state_of("frontend0", READY, {INTAKE: 2, OPEN: 5, BEGUN: 2}), state_of("frontend1", READY, {INTAKE: 2, OPEN: 1, BEGUN: 1})
    assert unfinished([one, two, state_of("worker0")], 2) == Unfinished(3, 3)
    assert unfinished([one, state_of("frontend1", DEAD)], 2) == Unfinished(2, 3)
    assert unfinished([one, state_of("frontend1", LOADING)], 2) is unfinished([one, two], 3) is None
    assert not unfinished([], 9)
    assert str(Unfinished(1, 2)) == "1 running, 2 queued"


def test_a_cluster_is_announced_when_every_frontend_has_heard_of_it() -> None:
    one, two = state_of("frontend0", READY, {LETS_IN: 1}), state_of("frontend1", READY, {LETS_IN: 0})
    assert all_let_in([one, state_of("worker0")])
    assert not all_let_in([one, two])
    assert not all_let_in([one, state_of("frontend1")])


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
        ("returning", "going back (why): worker0 loading"),
        ("rolling", "restarting N"),
        ("done", "done"),
    ],
)
def test_progress_in_words(phase: str, text: str) -> None:
    assert told(Change(number=1, kind="reload", phase=phase, model="new", note="N", error="why"), cluster_state()) == text


def test_a_failed_change_is_in_the_status() -> None:
    change = Change(number=1, kind="reload", phase="failed", model="new", error="why")
    assert "the last reload, to new, failed: why" in status_table(CLUSTER, cluster_state(change=change))
    assert "failed" not in status_table(CLUSTER, cluster_state())


def test_waiting_ends_when_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def answers(*_: object) -> ClusterState:
        asked.append(None)
        return cluster_state()

    monkeypatch.setattr("launcher.drain.ask", answers)
    never: Callable[[ClusterState], str | None] = lambda state: "more"  # noqa: E731
    assert not waited(CLUSTER, 0.0, never)
    assert waited(CLUSTER, None, lambda state: None if len(asked) > 2 else "more")


def test_how_a_stop_went_that_nobody_saw(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The supervisor has ended between two looks at it: within the time and with nothing left at the last look, or not."""
    answers: list[object] = []
    gauges = {INTAKE: 9.0}

    def answer(*_: object) -> ClusterState:
        if answers:
            raise LauncherError("it does not answer")
        answers.append(None)
        return msgspec.structs.replace(cluster_state(), processes=[state_of("frontend0", READY, gauges)])

    monkeypatch.setattr("launcher.drain.ask", answer)
    monkeypatch.setattr("launcher.drain.POLL_SECONDS", 0.0)
    monkeypatch.setattr("launcher.drain.is_live", lambda folder: False)
    for wait, left, finished in ((None, 0.0, True), (100.0, 0.0, True), (0.0, 0.0, False), (None, 2.0, False)):
        answers[:] = []
        gauges[OPEN] = left
        assert finish(CLUSTER, wait) == finished
    monkeypatch.setattr("launcher.drain.is_live", lambda folder: True)
    answers[:] = []
    with pytest.raises(LauncherError, match="does not answer"):
        finish(CLUSTER, None)


def test_who_interrupts_a_drain_is_told_that_it_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr("launcher.drain.ask", lambda *_: cluster_state())
    monkeypatch.setattr("launcher.drain.waited", interrupted)
    with pytest.raises(KeyboardInterrupt):
        drain(CLUSTER, None)
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

    monkeypatch.setattr("launcher.status.choose_cluster", lambda port: CLUSTER)
    monkeypatch.setattr("launcher.status.finish", drains)
    monkeypatch.setattr("launcher.status._stop", lambda cluster, timeout: done.append(timeout))
    monkeypatch.setattr("launcher.status._await_end", lambda cluster, pid, timeout: done.append(timeout))
    assert run_stop(build_parser("cluster").parse_args(["cluster", "stop", *arguments])) == code
    assert done == stopped


def test_a_cancellation_goes_with_no_other_option() -> None:
    with pytest.raises(LauncherError, match="goes with no --max-slots") as refused:
        run_reload(reload_args("--cancel", "--max-slots", "9"))
    assert refused.value.code == 2
