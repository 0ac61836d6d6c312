"""Requests that are out of time: in line, while they run, over deaths; and that their deadlines are kept in order."""

import pytest

from scheduler.errors import InvariantError
from scheduler.live import SPARE
from tests.support.scheduler_bench import Bench, attached, prompt_of


def test_out_of_time_in_line_without_a_slot() -> None:
    bench = Bench(attached(slots=1))
    [running] = bench.admit(prompt_of(4), 30)
    [waiting] = bench.admit(prompt_of(4, 1), 8, timeout=0.05)
    bench.step()
    assert bench.engine.next_deadline == bench.deadlines[waiting]
    bench.run_until(bench.now + 0.06)
    client = bench.clients["tokenizer0"]
    assert (client.problems[waiting].status, client.problems[waiting].code) == (504, "deadline_exceeded")
    assert not client.tokens.get(waiting)
    assert waiting not in client.began
    assert bench.worker.admitted.keys() == {running}
    bench.settle()
    assert bench.engine.next_deadline is None
    assert len(client.tokens[running]) == 30
    assert {name: bench.engine.tally.counts[name] for name in ("errors", "expired", "finished_length")} == {
        "errors": 1, "expired": 1, "finished_length": 1
    }  # fmt: skip


def test_out_of_time_while_it_runs_frees_slot_and_blocks_when_the_plans_in_flight_retire() -> None:
    bench = Bench(run_ahead=2)
    [key] = bench.admit(prompt_of(9), 30, timeout=0.1)
    [other] = bench.admit(prompt_of(9, 1), 12)
    while bench.now < bench.deadlines[key]:
        bench.step()
        bench.engine.check()
    bench.plan()
    client, session = bench.clients["tokenizer0"], bench.engine.session
    assert session is not None
    assert session.inflight, "plans that name the row are on their way"
    assert 0 < len(client.tokens[key]) < 30
    assert client.problems[key].code == "deadline_exceeded"
    assert bench.engine.gauges()["running"] == 1
    for _ in range(3):
        bench.step()
        bench.engine.check()
    assert bench.engine.gauges()["slots_used"] == 1
    bench.settle()
    assert len(client.tokens[other]) == 12


def test_time_goes_on_over_the_deaths_of_worker_and_scheduler() -> None:
    bench = Bench(attached(slots=2))
    keys = [bench.admit(prompt_of(4, number), 30, timeout=0.2)[0] for number in range(3)]
    bench.step()
    bench.worker.restart()
    bench.step()
    bench.scheduler_dies()
    bench.now = bench.deadlines[keys[0]] - 0.01
    bench.plan()
    client = bench.clients["tokenizer0"]
    assert not client.problems
    bench.now += 0.01
    bench.plan()
    assert {key: client.problems[key].status for key in keys} == dict.fromkeys(keys, 504)
    bench.settle()
    assert bench.engine.idle


def test_time_goes_on_without_a_worker() -> None:
    bench = Bench(start=False)
    [key] = bench.admit(prompt_of(4), 8, timeout=1.0)
    bench.now += 1.0
    bench.plan()
    assert bench.clients["tokenizer0"].problems[key].code == "deadline_exceeded"


def test_deadlines_of_what_is_over_are_forgotten() -> None:
    bench = Bench()
    for _ in range(3 * SPARE):
        bench.abort(bench.admit(prompt_of(2), 2, timeout=9e4))
    live = bench.engine._live
    assert len(live._deadlines) <= SPARE + 2
    [key] = bench.admit(prompt_of(2), 2, timeout=0.5)
    bench.abort([key])
    [again] = bench.admit(prompt_of(2), 2)
    bench.now += 1.0
    bench.settle()
    assert again in bench.clients["tokenizer0"].finish
    assert not bench.clients["tokenizer0"].problems


def test_sums_that_do_not_add_up_are_found() -> None:
    bench = Bench()
    bench.admit(prompt_of(2), 8, timeout=50.0)
    live = bench.engine._live
    for damage in ("reserved", "_timed"):
        setattr(live, damage, getattr(live, damage) + 1)
        with pytest.raises(InvariantError):
            bench.engine.check()
        setattr(live, damage, getattr(live, damage) - 1)
    live._deadlines.clear()
    with pytest.raises(InvariantError, match="a deadline is forgotten") as found:
        live.check()
    bench.engine.repair(found.value)
    bench.engine.check()
    assert live.next_deadline is not None
