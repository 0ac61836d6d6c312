"""The search for the row that breaks its steps: by itself, and in an engine whose worker dies of it or is killed at any moment."""

import math
from collections.abc import Callable, Collection

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from messages.explain import Explain, Explained
from messages.result import StepFailed, StepResult, WorkerReady
from messages.text import Problem
from messages.tokens import FINISH_ERROR
from scheduler.errors import InvariantError
from scheduler.suspects import ALONE, MOST_REST, PROOF, STRIKES, Suspects
from tests.support.null_worker import reference
from tests.support.scheduler_bench import Bench, attached, prompt_of

VOCAB, CONTEXT = 29, 40


def bound(suspects: int) -> int:
    """Failures that one culprit among so many rows may cost."""
    return STRIKES + math.ceil(math.log2(suspects)) + ALONE - 1


def clear(suspects: Suspects, *keys: int) -> None:
    for _ in range(PROOF):
        suspects.progressed(list(keys))


class World:
    """Rows that run whenever they may; those in `culprits` fail every session they run in."""

    def __init__(self, rows: int, culprits: set[int]) -> None:
        self.suspects = Suspects()
        self.live = set(range(rows))
        self.culprits = culprits
        self.found: list[int] = []
        self.failures = 0
        self.now = 0.0

    def run(self, sessions: int = 1000) -> None:
        for _ in range(sessions):
            if not self.live & self.culprits:
                return
            self.session()
        raise AssertionError("the search does not end")

    def session(self) -> None:
        self.suspects.begin(len(self.live), self.now)
        self.suspects.attached(self.now)
        running = {key for key in self.live if not self.suspects.holds(key)}
        assert running, "nobody may run"
        self.now += 1.0
        if not running & self.culprits:
            clear(self.suspects, *running)
            assert self.suspects.finished(self.now, idle=True), "a session that ends the search would go on for ever"
            return
        self.failures += 1
        found = self.suspects.failed(running)
        if found is not None:
            assert running == {found}, "condemned in company"
            self.found.append(found)
            self.live.remove(found)


@pytest.mark.parametrize("rows", [*range(1, 18), 64, 255, 256])
def test_one_culprit_is_found_with_few_failures(rows: int) -> None:
    for culprit in {0, rows // 3, rows // 2, rows - 1}:
        world = World(rows, {culprit})
        world.run()
        assert world.found == [culprit]
        assert world.failures <= bound(rows)


@given(st.integers(1, 40), st.sets(st.integers(0, 39), min_size=1, max_size=5))
def test_several_culprits_are_found_and_nobody_else(rows: int, marked: set[int]) -> None:
    culprits = {key % rows for key in marked}
    world = World(rows, culprits)
    world.run()
    assert set(world.found) == culprits
    assert world.failures <= 2 * len(culprits) * bound(rows)


def test_rows_that_get_on_are_no_suspects() -> None:
    suspects = Suspects()
    for _ in range(5 * STRIKES):
        assert suspects.failed({1, 2}) is None
        assert suspects
        clear(suspects, 1, 2)
        assert not suspects
        suspects.begin(2, 0.0)
        assert not suspects.holds(1)


def test_one_token_is_no_proof() -> None:
    """A row that breaks every decode step still gets a token from its prompt chunks each time."""
    suspects = Suspects()
    suspects.failed({1, 2})
    suspects.progressed([1, 2])
    suspects.failed({1, 2})
    suspects.begin(2, 0.0)
    assert [suspects.holds(key) for key in (1, 2)] == [False, True]


def test_failures_without_a_common_row_begin_anew() -> None:
    suspects = Suspects()
    for keys in ({1}, {2}, {3}, {1}, {2}):
        assert suspects.failed(keys) is None
        suspects.begin(3, 0.0)
        assert not suspects.holds(1)


def search(keys: set[int], live: int = 10) -> Suspects:
    suspects = Suspects()
    for _ in range(STRIKES):
        suspects.failed(keys)
    suspects.begin(live, 0.0)
    suspects.attached(0.0)
    return suspects


def test_half_of_the_suspects_run_apart_and_then_the_other_half() -> None:
    suspects = search({1, 2, 3, 4})
    assert [suspects.holds(key) for key in (1, 2, 3, 4, 5)] == [False, False, True, True, True]
    assert not suspects.finished(0.1, idle=True)
    clear(suspects, 1)
    assert not suspects.finished(0.1, idle=False)
    clear(suspects, 2)
    assert suspects.finished(0.1, idle=False)
    suspects.begin(10, 0.2)
    assert [suspects.holds(key) for key in (1, 2, 3, 4, 5)] == [True, True, False, True, True]
    assert suspects.lone
    suspects.ended(3)
    assert suspects.finished(0.3, idle=False)
    suspects.begin(9, 0.3)
    clear(suspects, 4)
    suspects.begin(9, 0.4)
    assert not any(suspects.holds(key) for key in range(9))
    assert not suspects.finished(9.9, idle=True)


def test_after_a_failed_trial_the_others_run_as_long_as_they_waited() -> None:
    suspects = search({1, 2, 3, 4})
    suspects.failed({1, 2})
    suspects.begin(10, 5.0)
    suspects.attached(7.0)
    assert [suspects.holds(key) for key in (1, 2, 3, 4, 5)] == [True, True, False, False, False]
    assert not suspects.finished(13.9, idle=False)
    assert suspects.finished(14.0, idle=False)
    suspects.begin(10, 14.1)
    assert [suspects.holds(key) for key in (1, 2, 3, 4, 5)] == [False, True, True, True, True]


def test_a_rest_ends_when_there_is_nothing_to_do_and_is_no_longer_than_its_limit() -> None:
    suspects = search({1, 2, 3, 4})
    suspects.failed({1, 2})
    suspects.begin(10, 1000.0)
    suspects.attached(1000.0)
    assert not suspects.finished(1000.0 + MOST_REST - 0.1, idle=False)
    assert suspects.finished(1000.0, idle=True)
    assert suspects.finished(1000.0, idle=False), "it has been said once"


def test_there_is_no_rest_when_all_are_suspects() -> None:
    suspects = search({1, 2}, live=2)
    suspects.failed({1})
    suspects.begin(1, 1.0)
    assert suspects.lone
    assert not suspects.holds(1)


def test_what_fails_while_the_others_run_is_searched_later() -> None:
    suspects = search({1, 2, 3, 4})
    suspects.failed({1, 2})
    suspects.begin(10, 1.0)
    suspects.failed({8, 9})
    suspects.begin(10, 2.0)
    assert [suspects.holds(key) for key in (1, 2, 3, 8, 9)] == [False, True, True, True, True]
    clear(suspects, 1)
    suspects.begin(10, 2.0)
    clear(suspects, 2)
    suspects.begin(10, 3.0)
    assert [suspects.holds(key) for key in (1, 2, 3, 8, 9)] == [True, True, True, False, True]


def test_a_rest_without_suspects_goes_on() -> None:
    suspects = search({1, 2, 3, 4})
    suspects.failed({1, 2})
    suspects.begin(10, 1.0)
    suspects.ended(1)
    suspects.ended(2)
    assert not suspects.finished(100.0, idle=True)


def test_a_row_that_was_cleared_in_its_trial_can_be_suspected_again() -> None:
    suspects = search({1, 2, 3, 4})
    clear(suspects, 1)
    suspects.failed({1})
    suspects.begin(1, 1.0)
    assert not suspects.holds(1)
    assert suspects.lone


# In an engine


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


@settings(max_examples=60)
@given(st.integers(1, 4), st.lists(st.integers(1, 40), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_late_and_doubled_messages_in_any_order_change_nothing(run_ahead: int, lives: list[int], chance: object) -> None:
    """Whatever dead incarnations have said comes later again, shuffled, between the messages of the living one."""
    pick: Callable[[int], int] = chance.randrange  # type: ignore[attr-defined]
    bench = Bench(run_ahead=run_ahead)
    keys = [bench.admit(prompt_of(6, i), 10)[0] for i in range(5)]
    ghosts: list[msgspec.Struct] = []
    for steps in lives:
        for _ in range(steps):
            bench.plan()
            ghosts += list(bench.worker.pending)[:1]
            if ghosts and pick(2):
                message = ghosts[pick(len(ghosts))]
                if not _is_due(bench, message):
                    bench.engine.receive(message, bench.now)  # type: ignore[arg-type]
                    bench.flush()
                    bench.engine.check()
            bench.deliver()
        ghosts += bench.worker.pending
        bench.worker.restart()
        bench.deliver()
        for message in ghosts:
            if not _is_due(bench, message):
                bench.engine.receive(message, bench.now)  # type: ignore[arg-type]
        bench.flush()
    bench.settle()
    assert_served(bench, keys)
    assert bench.engine.tally.counts["errors"] == 0


def _is_due(bench: Bench, message: msgspec.Struct) -> bool:
    """Something that the living incarnation has said or is about to say: only its own channel may bring that, in order."""
    if isinstance(message, WorkerReady):
        return message.incarnation >= bench.worker.geometry.incarnation
    answers = isinstance(message, StepResult | StepFailed)
    return getattr(message, "session", 0) == bench.worker._session and (not answers or message in bench.worker.pending)


@settings(max_examples=100)
@given(
    st.integers(1, 4),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=8),
    st.integers(1, 12),
)
def test_killed_at_any_moment_it_says_what_an_undisturbed_run_says(run_ahead: int, cache: bool, kills: list[tuple[int, bool]], rows: int) -> None:
    bench = Bench(attached(blocks=30, slots=5), run_ahead=run_ahead, prefix_cache=cache)
    keys = [bench.admit(prompt_of(6, i), 10)[0] for i in range(rows)]
    for steps, with_plans in kills:
        for _ in range(steps):
            bench.step()
        if with_plans:
            bench.plan()
        bench.worker.restart()
        bench.deliver()
        bench.engine.check()
    bench.settle()
    failed = set(bench.clients["tokenizer0"].problems)
    assert_served(bench, keys, failed)
    if len(kills) < STRIKES + ALONE:
        assert not failed
