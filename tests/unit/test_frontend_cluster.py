"""The frontend's view of the cluster: readiness, reasons, the choice of a tokenizer."""

import msgspec
import pytest

from frontend import cluster
from frontend.cluster import ClusterView, Route
from frontend.errors import ApiError
from messages.cluster import DEAD, LOADING, READY, STALLED, STARTING, STOPPING, ClusterState, ProcessState


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def process(name: str, phase: str = READY, incarnation: int = 1) -> ProcessState:
    facts: dict[str, int | float | str] = {"context": 2048} if name == "scheduler" else {"vocab": 300}
    return ProcessState(name=name, incarnation=incarnation, pid=1, phase=phase, detail="loading weights", progress=0.43, facts=facts)


def state(*processes: ProcessState, ready: bool = True, phase: str = READY, reason: str = "") -> ClusterState:
    return ClusterState(ready=ready, phase=phase, reason=reason, model="m", started=0.0, processes=list(processes))


def test_nothing_heard_yet() -> None:
    view = ClusterView(["tokenizer0"])
    assert "supervisor" in (view.reason() or "")
    assert not view.started
    with pytest.raises(ApiError) as caught:
        view.require_accepting()
    assert (caught.value.status, caught.value.headers()) == (503, {"Retry-After": "2"})


def test_the_reason_has_phase_and_progress() -> None:
    view = ClusterView(["tokenizer0"])
    view.update(state(process("tokenizer0"), process("worker0", LOADING), ready=False, phase=LOADING))
    reason = view.reason() or ""
    assert "phase loading" in reason
    assert "worker0 loading weights (43%)" in reason
    assert "tokenizer0" not in reason


def test_a_pause_of_this_process_is_no_silence_of_the_supervisor() -> None:
    clock = Clock()
    view = ClusterView(["tokenizer0"], clock=clock)
    view.look()
    view.update(state(process("tokenizer0")))
    clock.now += 60
    assert view.reason() is None
    view.look()
    assert view.reason() is None
    for _ in range(30):
        clock.now += 0.1
        view.look()
    assert "not been heard" in (view.reason() or "")


def test_silence_is_not_ready_and_recovers() -> None:
    clock = Clock()
    view = ClusterView(["tokenizer0"], clock=clock)
    view.update(state(process("tokenizer0")))
    assert view.reason() is None
    clock.now += 3.5
    assert "not been heard" in (view.reason() or "")
    view.update(state(process("tokenizer0")))
    assert view.reason() is None


def test_started_stays_true() -> None:
    view = ClusterView(["tokenizer0"])
    view.update(state(process("tokenizer0")))
    view.update(state(process("tokenizer0"), process("worker0", STALLED), ready=False, phase=STALLED, reason="worker0 is stalled"))
    assert view.started
    assert "worker0 is stalled" in (view.reason() or "")


def test_the_reason_says_everything_once() -> None:
    silent = ProcessState(name="worker0", incarnation=1, pid=1, phase=STALLED, detail="not heard from for 12.4 s")
    idle = ProcessState(name="scheduler", incarnation=1, pid=1, phase=STARTING)
    view = ClusterView(["tokenizer0"])
    view.update(state(silent, idle, ready=False, phase=STALLED, reason="worker0 stalled: not heard from for 12.4 s"))
    assert view.reason() == "phase stalled; worker0 stalled: not heard from for 12.4 s; scheduler starting"
    view.update(state(silent, ready=False, phase=STOPPING, reason="stopping"))
    assert view.reason() == "phase stopping; worker0 stalled not heard from for 12.4 s"
    loading = ProcessState(name="worker0", incarnation=1, pid=1, phase=LOADING, detail="loading weights 43 %", progress=0.43)
    view.update(state(loading, ready=False, phase=LOADING))
    assert view.reason() == "phase loading; worker0 loading weights 43 %"


def test_round_robin_over_ready_tokenizers() -> None:
    names = ["tokenizer0", "tokenizer1", "tokenizer2"]
    view = ClusterView(names)
    view.update(state(process("tokenizer0"), process("tokenizer1", LOADING), process("tokenizer2"), process("scheduler")))
    chosen = [route.tokenizer for _ in range(4) if (route := view.route())]
    assert sorted(chosen) == ["tokenizer0"] * 2 + ["tokenizer2"] * 2
    assert chosen[0] != chosen[1]


def test_without_a_tokenizer_there_is_no_way() -> None:
    view = ClusterView(["tokenizer0"])
    view.update(state(process("scheduler")))
    assert view.reason() == "no tokenizer process is ready"
    assert view.route() is None


@pytest.mark.parametrize(("phase", "is_way"), [(READY, True), (STALLED, True), (LOADING, True), (STARTING, False), (DEAD, False), (STOPPING, False)])
def test_a_scheduler_that_has_a_context_is_a_way(phase: str, is_way: bool) -> None:
    """Whatever its worker does: its line is there for that."""
    view = ClusterView(["tokenizer0"])
    view.update(state(process("tokenizer0"), process("scheduler", phase)))
    assert (view.route() is not None) == is_way


def test_a_scheduler_that_has_no_context_yet_is_none() -> None:
    view = ClusterView(["tokenizer0"])
    view.update(state(process("tokenizer0"), ProcessState(name="scheduler", incarnation=2, pid=1, phase=LOADING)))
    assert view.route() is None
    view.update(state(process("tokenizer0")))
    assert view.route() is None


def test_a_route_stands_while_both_processes_live() -> None:
    view = ClusterView(["tokenizer0"])
    alive = [process("tokenizer0", incarnation=2), process("scheduler", incarnation=5)]
    view.update(state(*alive))
    route = view.route()
    assert route == Route("tokenizer0", 2, "scheduler", 5)
    assert view.stands(route)
    for other in (
        [process("tokenizer0", DEAD, incarnation=2), alive[1]],
        [process("tokenizer0", LOADING, incarnation=3), alive[1]],
        [alive[0], process("scheduler", DEAD, incarnation=5)],
        [alive[0], process("scheduler", incarnation=6)],
        alive[:1],
    ):
        view.update(state(*other))
        assert not view.stands(route)
    view.update(state(process("tokenizer0", STALLED, incarnation=2), process("scheduler", STALLED, incarnation=5)))
    assert view.stands(route)


def test_requests_are_taken_while_a_process_starts_again() -> None:
    clock = Clock()
    view = ClusterView(["tokenizer0"], clock=clock)
    view.update(state(process("tokenizer0"), process("worker0", LOADING), ready=False, phase=LOADING))
    with pytest.raises(ApiError):
        view.require_accepting()
    view.update(state(process("tokenizer0")))
    view.update(state(process("tokenizer0", DEAD), ready=False, phase=DEAD))
    view.require_accepting()
    clock.now += 3.5
    with pytest.raises(ApiError, match="not been heard"):
        view.require_accepting()
    ending = msgspec.structs.replace(state(process("tokenizer0"), ready=False, phase=STOPPING, reason="stopping"), stop_seconds=1.0)
    view.update(ending)
    with pytest.raises(ApiError, match="stopping"):
        view.require_accepting()


async def test_a_frontend_that_was_started_again_takes_requests_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait until a tokenizer has said what the model's defaults are."""
    monkeypatch.setattr(cluster, "INFORMED_SECONDS", 0.01)
    view = ClusterView(["tokenizer0"], started=True)
    view.require_accepting()
    dead = ProcessState(name="tokenizer0", incarnation=1, pid=0, phase=DEAD)
    view.update(state(dead, process("scheduler"), process("worker0", LOADING), ready=False, phase=LOADING))
    view.require_accepting()
    with pytest.raises(ApiError, match="nothing is known"):
        await view.informed()
    view.update(state(process("tokenizer0", LOADING), process("scheduler"), process("worker0", LOADING), ready=False, phase=LOADING))
    await view.informed()


def test_the_death_of_another_frontend_is_not_noticed() -> None:
    view = ClusterView(["tokenizer0"], ["frontend0", "frontend1"])
    view.update(state(process("tokenizer0"), process("frontend0"), process("frontend1", LOADING), ready=False, phase=LOADING))
    assert view.reason() is not None, "before the cluster was ready once"
    view.update(state(process("tokenizer0")))
    view.update(state(process("tokenizer0"), process("frontend0"), process("frontend1", DEAD), ready=False, phase=DEAD, reason="frontend1 died"))
    assert view.reason() is None
    assert [view.serves(name) for name in ("frontend0", "frontend1", "frontend2")] == [True, False, False]
    assert [view.answers(name) for name in ("frontend0", "frontend1", "frontend2")] == [True, False, False]
    view.update(state(process("tokenizer0", DEAD), process("frontend1", DEAD), ready=False, phase=DEAD, reason="frontend1 died"))
    assert view.reason() is not None


def test_a_frontend_that_is_about_to_end_is_asked_for_the_requests_that_it_finishes() -> None:
    view = ClusterView(["tokenizer0"], ["frontend0", "frontend1"])
    view.update(state(process("tokenizer0"), process("frontend0"), process("frontend1", STOPPING), ready=False, phase=STOPPING))
    assert (view.serves("frontend1"), view.answers("frontend1")) == (False, True)


def test_what_is_known_of_the_model_outlives_its_processes() -> None:
    view = ClusterView(["tokenizer0"])
    known = ProcessState(name="tokenizer0", incarnation=1, pid=1, phase=READY, facts={"default_top_p": 0.5, "default_odd": "x", "context": 9})
    view.update(state(known))
    view.update(state(ProcessState(name="tokenizer0", incarnation=2, pid=0, phase=DEAD)))
    assert (view.sampling_defaults(), view.context()) == ({"top_p": 0.5}, 9)


def test_stopping_is_not_ready() -> None:
    view = ClusterView(["tokenizer0"])
    view.update(state(process("tokenizer0")))
    view.stopping = True
    assert "shutting down" in (view.reason() or "")


def test_context_from_the_facts() -> None:
    view = ClusterView(["tokenizer0"])
    assert view.context() is None
    view.update(state(process("scheduler")))
    assert view.context() == 2048
