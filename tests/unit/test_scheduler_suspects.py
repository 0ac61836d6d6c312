"""The search for the row that breaks its steps, by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.suspects import ALONE, MOST_REST, PROOF, STRIKES, Suspects
from tests.support.witness import bound


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


def test_tokens_of_two_sessions_are_no_proof() -> None:
    suspects = Suspects()
    suspects.failed({1})
    for _ in range(PROOF):
        suspects.begin(1, 0.0)
        suspects.progressed([1])
    assert suspects
    suspects.progressed([1])
    assert not suspects


def test_a_failure_in_the_company_of_one_that_has_ended_since_is_not_one_alone() -> None:
    suspects = Suspects()
    for _ in range(ALONE - 1):
        suspects.failed({1}, company=True)
        suspects.begin(1, 0.0)
    assert [suspects.failed({1}) for _ in range(ALONE)] == [None] * (ALONE - 1) + [1]


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
