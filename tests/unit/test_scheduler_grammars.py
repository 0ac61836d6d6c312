"""Grammars of rows: compiled one at a time, before their rows run, kept for the next ones, and blamed for what they alone can have done."""

import pytest

from messages.admit import Admit
from messages.plan import Prepare
from messages.result import UNMATCHED, Prepared, WorkerReady
from messages.tokens import FINISH_ERROR, FINISH_LENGTH
from scheduler import grammars as module
from scheduler.errors import InvariantError
from scheduler.grammars import MOST_KEPT, Grammars
from tests.support.null_answers import POISON_SEED_MARK
from tests.support.null_worker import DEADLY, LOST, REFUSED
from tests.support.scheduler_bench import Bench, attached, prompt_of
from transport.columns import pack_i32, view_i32


def orders(bench: Bench) -> list[Prepare]:
    """What the engine would have the worker compile now; the worker does not hear of it."""
    bench.engine.advance(bench.now)
    return [message for _, message in bench.engine.take() if isinstance(message, Prepare)]


def test_a_row_waits_for_its_grammar_and_is_in_nobody_s_way() -> None:
    bench = Bench()
    first = bench.admit(prompt_of(5), 3, program="good")[0]
    plain = bench.admit(prompt_of(6), 3)[0]
    bench.plan()
    assert bench.worker.prepared == {1: "good"}
    assert not any(plan.match for plan in bench.worker.plans)
    assert bench.engine.gauges()["running"] == 1
    bench.settle()
    assert set(bench.clients["tokenizer0"].finish) == {first, plain}
    assert bench.worker.matched == {first: {"good"}}


def test_rows_of_one_program_share_it_and_the_next_finds_it() -> None:
    bench = Bench()
    keys = bench.admit(prompt_of(5), 3, n=3, program="good")
    bench.settle()
    keys += bench.admit(prompt_of(5), 3, program="good")
    bench.settle()
    assert bench.worker.prepared == {1: "good"}
    assert [bench.worker.matched[key] for key in keys] == [{"good"}] * 4


def test_a_restarted_worker_compiles_what_is_needed_and_rows_are_told_what_they_said() -> None:
    bench = Bench(attached(block_size=1, blocks=60, width=40))
    bench.admit(prompt_of(5), 2, program="over")
    bench.settle()
    key = bench.admit(prompt_of(5, 1), 12, program="good")[0]
    for _ in range(6):
        bench.step()
    bench.worker.restart()
    bench.settle()
    assert bench.worker.prepared == {2: "good"}
    assert len(bench.clients["tokenizer0"].tokens[key]) == 12
    shared = bench.worker.seen
    bench.admit(prompt_of(5, 1) + bench.clients["tokenizer0"].tokens[key], 2, program="good")
    bench.settle()
    assert bench.worker.seen == shared  # cached tokens of a prompt are nothing it has said


def test_a_program_that_cannot_be_compiled_fails_its_rows_only_and_is_asked_for_again() -> None:
    bench = Bench()
    bad = bench.admit(prompt_of(5), 3, n=2, program=REFUSED)
    good = bench.admit(prompt_of(5), 3, program="good")[0]
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert {client.problems[key].code for key in bad} == {"invalid_grammar"}
    assert client.finish == dict.fromkeys(bad, FINISH_ERROR) | {good: FINISH_LENGTH}
    again = bench.admit(prompt_of(5), 3, program=REFUSED)[0]
    bench.abort([again])
    bench.settle()
    assert bench.engine.idle
    bench.admit(prompt_of(5), 3, program=REFUSED)
    assert [order.program for order in orders(bench)] == [REFUSED]


def test_a_row_whose_grammar_cannot_go_on_fails_alone() -> None:
    bench = Bench()
    lost = bench.admit(prompt_of(5), 9, program=LOST)[0]
    plain = bench.admit(prompt_of(5), 9)[0]
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert len(client.tokens[lost]) == 3
    assert client.problems[lost].code == "grammar_too_complex"
    assert client.finish[plain] == FINISH_LENGTH
    assert UNMATCHED not in client.finish.values() or client.finish[lost] == FINISH_ERROR


def test_a_program_that_ends_the_worker_is_compiled_apart_and_then_failed() -> None:
    bench = Bench()
    rows = [bench.admit(prompt_of(5, number), 20)[0] for number in range(3)]
    for _ in range(4):
        bench.step()
    deadly = bench.admit(prompt_of(5), 3, program=DEADLY)[0]
    other = bench.admit(prompt_of(5), 3, program="good")[0]
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert bench.worker.deaths == module.STRIKES
    assert client.problems[deadly].code == "poison_request"
    assert {client.finish[key] for key in (*rows, other)} == {FINISH_LENGTH}


def test_a_deadly_program_whose_rows_have_left_is_forgotten() -> None:
    bench = Bench()
    key = bench.admit(prompt_of(5), 3, program=DEADLY)[0]
    bench.plan()
    bench.abort([key])
    bench.settle()
    assert (bench.worker.deaths, bench.worker.prepared) == (1, {})


def test_in_a_trial_of_rows_a_program_is_compiled_with_nothing_else_in_flight() -> None:
    """Or a row that is tried alone could be condemned for a program's deed."""
    bench = Bench()
    poison = bench.admit(prompt_of(5), 30)[0]
    bench.worker.die_with = {poison}
    while not bench.engine._suspects.trial:
        bench.step()
    bench.worker.die_with = set()
    bench.step()
    while not (bench.engine.session and bench.engine.session.inflight):
        bench.step()
    bench.admit(prompt_of(5), 3, program=DEADLY)
    assert orders(bench) == []
    bench.settle()
    assert bench.clients["tokenizer0"].finish[poison] == FINISH_LENGTH


def test_answers_of_another_time_change_nothing() -> None:
    bench = Bench()
    bench.engine.receive(Prepared(session=1, grammar=7), bench.now)
    bench.engine.receive(Prepared(session=99, grammar=1), bench.now)
    bench.admit(prompt_of(5), 3, program="good")
    (order,) = orders(bench)
    bench.engine.receive(Prepared(session=order.session, grammar=order.grammar + 1), bench.now)
    assert orders(bench) == []
    bench.worker.receive(order)
    bench.engine.receive(WorkerReady(worker="worker0"), bench.now)  # the same worker, attached anew: nothing is held against the program
    bench.flush()
    bench.worker.pending.clear()
    bench.worker.receive(order)
    assert not bench.worker.pending


def test_a_worker_that_does_not_come_to_an_end_with_one_hangs() -> None:
    bench = Bench(step_deadline=60.0)
    key = bench.admit(prompt_of(5), 3, program="good")[0]
    assert len(orders(bench)) == 1
    why = "the form of an answer was not compiled in 60 s"
    assert [bench.engine.give_up(bench.now + later) for later in (59, 61, 61)] == [None, why, None]
    assert bench.engine.overdue(bench.now + 61) == why
    bench.worker.restart()
    bench.settle()
    assert bench.engine.overdue(bench.now + 1000) is None
    assert bench.clients["tokenizer0"].finish[key] == FINISH_LENGTH


def answered(grammars: Grammars, bench: Bench) -> Prepare:
    assert bench.engine.session is not None
    (order,), _ = grammars.orders(bench.engine.session, trial=False, now=0.0)
    grammars.answered(order.grammar, True)
    return order


def test_the_worker_keeps_a_few_that_nobody_needs() -> None:
    bench, grammars = Bench(), Grammars()
    for number in range(MOST_KEPT + 2):
        grammar = grammars.join(f"program {number}")
        assert answered(grammars, bench).forget == ([1] if number == MOST_KEPT + 1 else [])
        grammars.leave(grammar)
    assert grammars.join("program 2").number == 3
    assert grammars.join("program 0").number == MOST_KEPT + 3


def test_tenants_have_their_turns() -> None:
    bench, grammars = Bench(), Grammars()
    for program, tenant in [("m0", "many"), ("m1", "many"), ("m2", "many"), ("m3", "many"), ("f0", "few"), ("f1", "few"), ("o", "other")]:
        grammars.join(program, tenant)
    assert [answered(grammars, bench).program for _ in range(3)] == ["m0", "f0", "o"]
    grammars.join("o1", "other")
    assert [answered(grammars, bench).program for _ in range(5)] == ["m1", "f1", "o1", "m2", "m3"]


def test_the_worker_has_so_many_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PREPARED", 2)
    bench, grammars = Bench(), Grammars()
    first, _ = grammars.join("a"), grammars.join("b")
    answered(grammars, bench)
    answered(grammars, bench)
    third = grammars.join("c")
    assert bench.engine.session is not None
    assert grammars.orders(bench.engine.session, trial=True, now=0.0) == ([], False)
    grammars.leave(first)
    order = answered(grammars, bench)
    assert (order.program, order.forget) == ("c", [1])
    grammars.leave(third)
    fourth = grammars.join("d")
    grammars.leave(fourth)
    assert grammars.orders(bench.engine.session, trial=False, now=0.0) == ([], False)


def test_one_that_is_asked_for_is_kept_until_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KEPT", 0)
    bench, grammars = Bench(), Grammars()
    ready = grammars.join("a")
    answered(grammars, bench)
    asked = grammars.join("b")
    assert bench.engine.session is not None
    grammars.orders(bench.engine.session, trial=False, now=0.0)
    grammars.leave(ready)
    assert all(grammars.facts([asked]).values())
    assert grammars.busy


@pytest.mark.parametrize("damage", ["users", "ready"])
def test_a_check_finds_what_does_not_add_up(damage: str) -> None:
    bench = Bench()
    key = bench.admit(prompt_of(5), 30, program="good")[0]
    for _ in range(4):
        bench.step()
    grammar = bench.engine._live[key].grammar
    assert grammar is not None
    setattr(grammar, damage, 0)
    with pytest.raises(InvariantError, match="grammar"):
        bench.engine.check()


def test_poison_rows_with_grammars_are_still_found() -> None:
    bench = Bench()
    keys = [bench.admit(prompt_of(5, number), 6, program="good")[0] for number in range(4)]
    bench.worker.die_with = {keys[2]}
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert {key for key in keys if key in client.problems} == {keys[2]}
    assert client.problems[keys[2]].code == "poison_request"


def test_a_row_without_logits_fails_for_that() -> None:
    bench = Bench()
    key = bench.admit(prompt_of(5), 9, seeds=[POISON_SEED_MARK | 7], program="good")[0]
    bench.settle()
    assert bench.clients["tokenizer0"].problems[key].code == "non_finite_logits"


def test_a_resumed_row_goes_on_in_its_grammar() -> None:
    bench = Bench(attached(block_size=1, blocks=60, width=40))
    key = bench.admit(prompt_of(5), 12, program="good")[0]
    for _ in range(7):
        bench.step()
    bench.scheduler_dies()
    bench.settle()
    assert len(bench.clients["tokenizer0"].tokens[key]) == 12
    matched = [plan for plan in bench.worker.plans if plan.match is not None]
    assert [view_i32(plan.match.grammar).tolist() for plan in matched if plan.match is not None] == [[1], [1]]
    assert isinstance(bench.admits[0], Admit)
    assert bench.admits[0].prompt == pack_i32(prompt_of(5))
