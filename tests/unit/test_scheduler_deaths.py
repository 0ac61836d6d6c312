"""An engine whose worker dies of a row, or is killed at any moment: nobody else fails, and all say what they say undisturbed."""

import random
from collections.abc import Collection

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from messages.explain import Explain, Explained
from messages.result import StepFailed, StepResult, WorkerReady
from messages.text import Problem
from messages.tokens import FINISH_ERROR
from scheduler.errors import InvariantError
from scheduler.suspects import ALONE
from tests.support.null_answers import reference
from tests.support.scheduler_bench import Bench, attached, prompt_of
from tests.support.witness import Witness, bound

VOCAB, CONTEXT = 29, 40


def assert_served(bench: Bench, keys: list[int], but: Collection[int] = ()) -> None:
    client = bench.clients["tokenizer0"]
    for i, key in enumerate(keys):
        if key not in but:
            assert client.tokens[key] == reference(key, prompt_of(6, i), 10, [], CONTEXT, VOCAB)[0]


def poisoned(rows: int, die: bool, culprits: int = 1, run_ahead: int = 2) -> tuple[Bench, list[int], set[int]]:
    bench = Bench(attached(blocks=4 * rows, slots=rows), run_ahead=run_ahead)
    keys = [bench.admit(prompt_of(6, i), 10)[0] for i in range(rows)]
    bad = set(keys[rows // 2 : rows // 2 + culprits])
    for _ in range(rows // 2 + 2):
        bench.step()
    if die:
        bench.worker.die_with = bad
    else:
        bench.worker.fail_step_with = bad
    bench.settle()
    return bench, keys, bad


@pytest.mark.parametrize(("rows", "run_ahead"), [(1, 1), (1, 3), (2, 2), (8, 1), (16, 3), (64, 2)])
@pytest.mark.parametrize("die", [False, True], ids=["fails", "dies"])
def test_only_the_culprit_fails(rows: int, run_ahead: int, die: bool) -> None:
    bench, keys, bad = poisoned(rows, die, run_ahead=run_ahead)
    client = bench.clients["tokenizer0"]
    [culprit] = bad
    assert client.finish[culprit] == FINISH_ERROR
    assert (client.problems[culprit].status, client.problems[culprit].code) == (500, "poison_request" if die else "step_failed")
    assert_served(bench, keys, bad)
    assert bench.engine.tally.counts["failed_steps"] <= bound(rows)
    assert bench.engine.tally.counts["errors"] == 1
    assert bench.engine.gauges()["slots_used"] == 0


def test_two_culprits() -> None:
    bench, keys, bad = poisoned(12, True, 2)
    assert set(bench.clients["tokenizer0"].problems) == bad
    assert_served(bench, keys, bad)


def test_a_culprit_that_goes_away_ends_the_search() -> None:
    bench = Bench(attached(blocks=40, slots=8))
    keys = [bench.admit(prompt_of(6, i), 10)[0] for i in range(8)]
    bench.worker.die_with = {keys[0]}
    while bench.worker.deaths < 3:
        bench.step()
    bench.abort(keys[:1])
    bench.settle()
    assert_served(bench, keys, {keys[0]})
    assert bench.worker.deaths == 3
    assert bench.engine.tally.counts["errors"] == 0


def test_whose_company_goes_away_at_each_death_is_not_to_blame() -> None:
    bench = Bench()
    [key] = bench.admit(prompt_of(6), 10)
    for other in range(1, ALONE + 1):
        if other < ALONE:
            gone = bench.admit(prompt_of(6, other), 10)
            bench.plan()
            assert bench.worker.in_flight() == {key, *gone}
            bench.abort(gone)
        else:
            bench.plan()
            assert bench.worker.in_flight() == {key}
        bench.worker.restart()
        while bench.engine.session is None or bench.engine.session.inflight or bench.worker.pending:
            assert bench.deliver()
    bench.settle()
    assert_served(bench, [key])


def test_who_comes_during_a_trial_waits_for_its_end() -> None:
    bench = Bench(attached(blocks=40, slots=8))
    keys = [bench.admit(prompt_of(6, i), 10)[0] for i in range(4)]
    bench.worker.die_with = {keys[0]}
    while bench.worker.deaths < 2:
        bench.step()
    [late] = bench.admit(prompt_of(6, 4), 10)
    bench.engine.receive(Explain(key=1, frontend="frontend0", keys=[late], tokenizer="tokenizer0"), bench.now)
    ((_, answer),) = bench.engine.take()
    assert isinstance(answer, Explained)
    assert answer.standings[0].waits_for == "worker"
    bench.engine.check()
    bench.settle()
    assert_served(bench, [*keys, late], {keys[0]})


def test_a_repair_during_a_search() -> None:
    bench = Bench(attached(blocks=40, slots=8))
    keys = [bench.admit(prompt_of(6, i), 10)[0] for i in range(4)]
    bench.worker.die_with = {keys[0]}
    while bench.worker.deaths < 3:
        bench.step()
    bench.engine.repair(InvariantError(["none, this is a drill"]))
    bench.flush()
    bench.settle()
    assert_served(bench, keys, {keys[0]})


def test_the_end_of_a_server_during_a_search() -> None:
    bench = Bench(attached(blocks=40, slots=8))
    keys = [bench.admit(prompt_of(6, i), 10)[0] for i in range(4)]
    bench.worker.die_with = {keys[0]}
    while bench.worker.deaths < 2:
        bench.step()
    bench.engine.fail_all(Problem(status=503, code="shutting_down", message="the server is shutting down"))
    bench.flush()
    bench.engine.check()
    assert bench.engine.idle
    assert set(bench.clients["tokenizer0"].problems) == set(keys)


# What an earlier incarnation still says


def test_a_late_ready_of_an_earlier_incarnation_is_ignored() -> None:
    bench = Bench()
    keys = [bench.admit(prompt_of(6, i), 10)[0] for i in range(4)]
    bench.step()
    bench.worker.restart()
    bench.step()
    bench.step()
    session = bench.engine.session
    bench.engine.receive(WorkerReady(worker="worker0", incarnation=0), bench.now)
    assert bench.engine.session is session
    assert bench.engine.take() == []
    bench.settle()
    assert_served(bench, keys)
    assert bench.engine.tally.counts["failed_steps"] == 1


EXACT = settings(max_examples=60)


@EXACT
@given(st.integers(1, 4), st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 1 << 32))
@example(run_ahead=4, lives=[3, 3, 29, 3, 3], seed=0)
def test_late_and_doubled_messages_in_any_order_change_nothing(run_ahead: int, lives: list[int], seed: int) -> None:
    """Whatever dead incarnations have said comes later again, shuffled, between the messages of the living one."""
    pick = random.Random(seed).randrange
    bench = Bench(run_ahead=run_ahead)
    witness = Witness(bench)
    keys = [bench.admit(prompt_of(6, i), 10)[0] for i in range(5)]
    ghosts: list[msgspec.Struct] = []
    for steps in lives:
        for _ in range(steps):
            bench.plan()
            ghosts += list(bench.worker.pending)[:1]
            if ghosts and pick(2):
                _haunt(bench, [ghosts[pick(len(ghosts))]])
                bench.engine.check()
            bench.deliver()
        ghosts += bench.worker.pending
        kill(bench, witness)
        _haunt(bench, ghosts)
    bench.settle()
    assert_served(bench, keys, witness.check())


def _haunt(bench: Bench, ghosts: list[msgspec.Struct]) -> None:
    for message in ghosts:
        if not _is_due(bench, message):
            bench.engine.receive(message, bench.now)  # type: ignore[arg-type]
    bench.flush()


def _is_due(bench: Bench, message: msgspec.Struct) -> bool:
    """Something that the living incarnation has said or is about to say: only its own channel may bring that, in order."""
    if isinstance(message, WorkerReady):
        return message.incarnation >= bench.worker.geometry.incarnation
    answers = isinstance(message, StepResult | StepFailed)
    return getattr(message, "session", 0) == bench.worker._session and (not answers or message in bench.worker.pending)


def kill(bench: Bench, witness: Witness) -> None:
    """The worker dies, and the next one says that it is ready."""
    witness.death()
    bench.worker.restart()
    bench.deliver()
    bench.engine.check()
    witness.check()


@EXACT
@given(
    st.integers(1, 4),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=8),
    st.integers(1, 12),
)
@example(run_ahead=1, cache=False, kills=[(1, True)] * ALONE, rows=1)
@example(run_ahead=1, cache=False, kills=[(1, True)] * (ALONE - 1), rows=1)
@example(run_ahead=1, cache=False, kills=[(2, True), (2, True), (4, True), (2, True)], rows=1)
def test_killed_at_any_moment_it_says_what_an_undisturbed_run_says(run_ahead: int, cache: bool, kills: list[tuple[int, bool]], rows: int) -> None:
    bench = Bench(attached(blocks=30, slots=5), run_ahead=run_ahead, prefix_cache=cache)
    witness = Witness(bench)
    keys = [bench.admit(prompt_of(6, i), 10)[0] for i in range(rows)]
    for steps, with_plans in kills:
        for _ in range(steps):
            bench.step()
        if with_plans:
            bench.plan()
        kill(bench, witness)
    bench.settle()
    assert_served(bench, keys, witness.check())
