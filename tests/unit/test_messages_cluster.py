"""What the state of the cluster adds up."""

from messages.change import DONE, FAILED, LOADING, Change
from messages.cluster import READY, ProcessState


def test_counters_over_all_lives_of_a_process() -> None:
    now, past = {"steps": 3.0, "preemptions": 1.0}, {"steps": 4.0, "deaths": 1.0}
    state = ProcessState(name="scheduler", incarnation=2, pid=1, phase=READY, counters=now, past=past)
    assert state.lifetime() == {"steps": 7.0, "preemptions": 1.0, "deaths": 1.0}


def test_counters_of_a_process_that_never_died() -> None:
    assert ProcessState(name="scheduler", incarnation=1, pid=1, phase=READY, counters={"steps": 3.0}).lifetime() == {"steps": 3.0}


def test_a_change_is_over_when_it_is_done_or_has_failed() -> None:
    assert [Change(number=1, kind="reload", phase=phase, model="m").over for phase in (LOADING, DONE, FAILED)] == [False, True, True]
