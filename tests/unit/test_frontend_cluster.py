"""The frontend's view of the cluster: readiness, reasons, the choice of a tokenizer."""

import pytest

from frontend.cluster import ClusterView
from frontend.errors import ApiError
from messages.cluster import DEAD, LOADING, READY, STALLED, STARTING, STOPPING, ClusterState, ProcessState


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def process(name: str, phase: str = READY, incarnation: int = 1) -> ProcessState:
    return ProcessState(name=name, incarnation=incarnation, pid=1, phase=phase, detail="loading weights", progress=0.43, facts={"context": 2048})


def state(*processes: ProcessState, ready: bool = True, phase: str = READY, reason: str = "") -> ClusterState:
    return ClusterState(ready=ready, phase=phase, reason=reason, model="m", started=0.0, processes=list(processes))


def test_nothing_heard_yet() -> None:
    view = ClusterView(["tokenizer0"])
    assert "supervisor" in (view.reason() or "")
    assert not view.started
    with pytest.raises(ApiError) as caught:
        view.require_ready()
    assert (caught.value.status, caught.value.headers()) == (503, {"Retry-After": "2"})


def test_the_reason_has_phase_and_progress() -> None:
    view = ClusterView(["tokenizer0"])
    view.update(state(process("tokenizer0"), process("worker0", LOADING), ready=False, phase=LOADING))
    reason = view.reason() or ""
    assert "phase loading" in reason
    assert "worker0 loading weights (43%)" in reason
    assert "tokenizer0" not in reason


def test_silence_is_not_ready_and_recovers() -> None:
    clock = Clock()
    view = ClusterView(["tokenizer0"], clock)
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


@pytest.mark.parametrize(
    ("processes", "phase", "taken"),
    [
        ([process("worker0", DEAD)], DEAD, True),
        ([process("worker0", STARTING), process("scheduler", READY)], STARTING, True),
        ([process("worker0", LOADING), process("scheduler", LOADING)], LOADING, True),
        ([process("worker0", READY), process("scheduler", STALLED)], STALLED, True),
        ([process("worker0", DEAD), process("scheduler", STARTING)], DEAD, False),
        ([process("worker0", DEAD), process("scheduler", DEAD)], DEAD, False),
        ([process("worker0", DEAD), process("tokenizer1", DEAD)], DEAD, False),
        ([process("worker0", STOPPING)], STOPPING, False),
    ],
)
def test_requests_wait_for_a_worker_that_is_started_again(processes: list[ProcessState], phase: str, taken: bool) -> None:
    view = ClusterView(["tokenizer0"])
    down = state(process("tokenizer0"), *processes, ready=False, phase=phase, reason="worker0 died")
    view.update(down)
    assert view.refusal() == view.reason() != None, "at the first start they are refused"  # noqa: E711
    view.update(state(process("tokenizer0")))
    assert view.refusal() is None
    view.update(down)
    assert "worker0 died" in (view.reason() or ""), "the cluster is not ready all the same"
    assert (view.refusal() is None) == taken


def test_requests_do_not_wait_when_nothing_is_known_or_the_end_has_come() -> None:
    clock = Clock()
    view = ClusterView(["tokenizer0"], clock)
    view.update(state(process("tokenizer0")))
    view.update(state(process("tokenizer0"), process("worker0", DEAD), ready=False, phase=DEAD))
    assert view.refusal() is None
    clock.now += 3.5
    assert "not been heard" in (view.refusal() or "")
    clock.now -= 3.5
    view.stopping = True
    assert view.refusal() == "the server is shutting down"
    view.stopping = False
    view.update(state(process("worker0", DEAD), ready=False, phase=DEAD))
    assert view.refusal() is not None, "there is no tokenizer either"


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
    chosen = [view.choose_tokenizer().name for _ in range(4)]
    assert sorted(chosen) == ["tokenizer0"] * 2 + ["tokenizer2"] * 2
    assert chosen[0] != chosen[1]


def test_no_tokenizer_is_503() -> None:
    view = ClusterView(["tokenizer0"])
    view.update(state(process("scheduler")))
    assert view.reason() == "no tokenizer process is ready"
    with pytest.raises(ApiError):
        view.choose_tokenizer()


def test_lost_tokenizers() -> None:
    view = ClusterView(["tokenizer0"])
    view.update(state(process("tokenizer0", incarnation=2)))
    assert view.lost("tokenizer0", 2) is None
    assert view.lost("tokenizer0", 1) is not None
    view.update(state(process("tokenizer0", DEAD, incarnation=2)))
    problem = view.lost("tokenizer0", 2)
    assert problem is not None
    assert problem.status == 503


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
