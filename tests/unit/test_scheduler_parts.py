"""The small parts on their own, and that `check()` sees what is broken."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from messages.tokens import Tokens
from scheduler.blocks import Blocks
from scheduler.deadlines import FLOOR, STOPPED, TIMES, WATCHED, Deadlines, Work
from scheduler.epochs import Epochs
from scheduler.errors import InvariantError
from scheduler.geometry import geometry_of
from scheduler.waiting import AGEING_SECONDS, MAX_PRIORITY, score
from tests.support.scheduler_bench import Bench, attached, prompt_of, session_of


def test_epochs_hold_until_their_plan_has_retired() -> None:
    epochs: Epochs[str] = Epochs()
    assert epochs.give("never planned", 0) == ["never planned"]
    assert epochs.give("a", 1) == []
    assert epochs.give("b", 2) == []
    assert epochs.give("c", 2) == []
    assert sorted(epochs.held()) == ["a", "b", "c"]
    assert epochs.retire(1) == ["a"]
    assert epochs.retire(2) == ["b", "c"]
    assert epochs.retire(3) == []
    assert epochs.give("late", 2) == ["late"]


def test_blocks_are_not_free_while_a_plan_in_flight_may_touch_them() -> None:
    none = np.zeros(0, dtype=np.int32)
    blocks = Blocks(geometry_of(attached(blocks=3, block_size=4), None))
    slot, index, block = blocks.cover(0, 9)
    assert (slot.tolist(), index.tolist(), block.size) == ([0, 0, 0], [0, 1, 2], 3)
    assert blocks.cover(0, 5)[0].size == 0
    with pytest.raises(InvariantError):
        blocks.cover(1, 1)
    blocks.give_up(blocks.clear(0, 7))
    assert (blocks.free, blocks.retiring) == (0, 3)
    blocks.check(none)
    blocks.retire(6)
    assert blocks.free == 0
    blocks.retire(7)
    assert (blocks.free, blocks.retiring) == (3, 0)
    blocks.check(none)
    blocks.grow(np.asarray([1, 2], dtype=np.int32))
    blocks.check(none)


def test_ageing_is_one_class_per_ageing_seconds() -> None:
    assert score(1, 100.0) < score(0, 100.0)
    assert score(0, 100.0) < score(1, 100.0 + 1.1 * AGEING_SECONDS)
    assert score(10**9, 0.0) == score(MAX_PRIORITY, 0.0)
    assert score(-(10**9), 0.0) == score(-MAX_PRIORITY, 0.0)


def test_a_first_step_has_the_allowance_and_later_ones_what_their_kind_takes() -> None:
    deadlines, step = Deadlines(60.0), Work(prefill=0, rows=5, reads=900)
    assert deadlines.of(step) == 60.0
    deadlines.add(step, 0.2)
    assert deadlines.of(step) == FLOOR
    assert deadlines.of(Work(0, 6, 1000)) == FLOOR, "a step of the same magnitude"
    deadlines.add(step, 4.0)
    assert deadlines.of(step) == TIMES * 4.0
    for _ in range(100):
        deadlines.add(step, 0.2)
    assert deadlines.of(step) == FLOOR


def test_a_first_step_may_take_longer_than_a_smaller_one_did() -> None:
    deadlines = Deadlines(60.0)
    deadlines.add(Work(prefill=100, rows=0, reads=10_000), 10.0)
    assert deadlines.of(Work(prefill=400, rows=0, reads=160_000)) == TIMES * 40.0
    assert deadlines.of(Work(prefill=1, rows=0, reads=1)) == TIMES * 10.0
    deadlines.add(Work(prefill=1, rows=0, reads=1), 0.1)
    assert deadlines.of(Work(prefill=2, rows=0, reads=2)) == TIMES * 10.0


def test_what_missed_its_deadline_gets_more_time_until_it_comes_back() -> None:
    deadlines, step, other = Deadlines(60.0), Work(8, 0, 64), Work(0, 1, 9)
    for patience in (2.0, 4.0, 8.0, 8.0):
        deadlines.missed(step)
        assert deadlines.of(step) == patience * 60.0
        assert deadlines.of(other) == 60.0
    deadlines.add(step, 100.0)
    assert deadlines.of(step) == TIMES * 100.0


def test_a_short_allowance_is_the_floor_and_none_is_for_ever() -> None:
    deadlines = Deadlines(2.0)
    deadlines.add(Work(8, 0, 64), 0.1)
    assert deadlines.of(Work(8, 0, 64)) == 2.0
    for_ever = Deadlines(0.0)
    assert for_ever.of(Work(8, 0, 64)) == math.inf
    for_ever.add(Work(8, 0, 64), 0.1)
    assert for_ever.of(Work(8, 0, 64)) == math.inf


def test_in_haste_the_floor_is_lower_and_there_is_no_patience() -> None:
    suspects = ["a row"]
    deadlines, step, unknown = Deadlines(60.0, suspects), Work(8, 0, 64), Work(0, 1, 9)
    assert deadlines.of(step) == 60.0, "nothing is known of this machine"
    deadlines.missed(step)
    assert deadlines.of(step) == 120.0
    deadlines.add(step, 0.1)
    assert (deadlines.of(step), deadlines.of(unknown)) == (WATCHED, FLOOR)
    deadlines.missed(step)
    assert deadlines.of(step) == WATCHED
    deadlines.stopped = True
    assert (deadlines.of(step), deadlines.of(unknown)) == (STOPPED, FLOOR)
    deadlines.add(step, 2.0)
    assert deadlines.of(step) == TIMES * 2.0
    deadlines.stopped = False
    suspects.clear()
    assert deadlines.of(unknown) == 60.0


def test_a_worker_that_is_at_work_is_slow_and_gets_more_time() -> None:
    """On a machine that is very busy: only a first step of its kind has no such time as usual, for one that is watched may be at work for ever."""
    deadlines, step, unknown = Deadlines(60.0, ["a row"]), Work(8, 0, 64), Work(0, 1, 9)
    deadlines.add(step, 0.1)
    deadlines.busy = True
    assert (deadlines.of(step), deadlines.of(unknown)) == (FLOOR, FLOOR)
    deadlines.missed(step)
    assert (deadlines.of(step), deadlines.of(unknown)) == (2 * FLOOR, FLOOR)
    deadlines.busy = False
    assert deadlines.of(step) == WATCHED


def test_a_stopped_worker_is_no_question_of_what_is_known() -> None:
    deadlines = Deadlines(60.0)
    deadlines.stopped = True
    assert deadlines.of(Work(8, 0, 64)) == FLOOR


def test_a_row_without_its_request_is_a_broken_invariant() -> None:
    with pytest.raises(InvariantError):
        session_of(Bench())._request(0)


def lose_block(bench: Bench) -> None:
    session_of(bench).pool.blocks.free -= 1


def wrong_capacity(bench: Bench) -> None:
    session_of(bench).pool.blocks.capacity[0] += 1


def wrong_refs(bench: Bench) -> None:
    session_of(bench).pool.blocks.refs[0] += 1


def wrong_unused(bench: Bench) -> None:
    session_of(bench).pool.unused += 1


def wrong_retiring(bench: Bench) -> None:
    session_of(bench).pool.blocks.retiring += 1


def lose_node(bench: Bench) -> None:
    pool = session_of(bench).pool
    pool.tree.forget(next(block for block in range(6) if block in pool.tree))


def lose_leaf(bench: Bench) -> None:
    session_of(bench).pool.tree._leaves.clear()


def lose_child(bench: Bench) -> None:
    tree = session_of(bench).pool.tree
    tree._children = [number + 1 for number in tree._children]


def lose_parent(bench: Bench) -> None:
    tree = session_of(bench).pool.tree
    node = next(iter(tree._key_of))
    tree._key_of[node] = (5, tree._key_of[node][1])


def lose_slot(bench: Bench) -> None:
    session_of(bench).slots._free.append(0)


def too_long(bench: Bench) -> None:
    session_of(bench).slots.length[0] = 10_000


def uncovered(bench: Bench) -> None:
    session_of(bench).slots.planned[0] = 20


def release_twice(bench: Bench) -> None:
    session_of(bench)._released = [0, 0]


def waiting_tokens(bench: Bench) -> None:
    bench.engine._waiting.tokens += 1


def waiting_line(bench: Bench) -> None:
    bench.engine._waiting._lines[""].clear()


def waiting_number(bench: Bench) -> None:
    bench.engine._waiting._number += 1


def no_request(bench: Bench) -> None:
    session_of(bench).slots.requests[0] = None


def lost_key(bench: Bench) -> None:
    del bench.engine._live[2]


def counters(bench: Bench) -> None:
    bench.engine.tally.add("accepted")


@pytest.mark.parametrize(
    "spoil",
    [
        lose_block,
        wrong_capacity,
        wrong_refs,
        wrong_unused,
        wrong_retiring,
        lose_node,
        lose_leaf,
        lose_child,
        lose_parent,
        lose_slot,
        too_long,
        uncovered,
        release_twice,
        waiting_tokens,
        waiting_line,
        waiting_number,
        no_request,
        lost_key,
        counters,
    ],
)
def test_check_sees_what_is_broken(spoil: Callable[[Bench], None]) -> None:
    bench = Bench(attached(blocks=12, slots=2))
    bench.admit(prompt_of(9, 1), 1)
    bench.settle()
    for _ in range(3):
        bench.admit(prompt_of(5), 20)
    for _ in range(3):
        bench.step()
    bench.engine.check()
    spoil(bench)
    with pytest.raises(InvariantError) as found:
        bench.engine.check()
    assert found.value.problems
    bench.engine.repair(found.value)
    assert bench.engine.tally.counts["invariant_violations"] == 1
    if spoil is too_long:  # its tokens cannot be right
        [lost] = [message for _, message in bench.engine.take() if isinstance(message, Tokens)]
        assert [problem.code for problem in lost.problems.values()] == ["internal_error"]
        return
    bench.settle()
    assert bench.engine.idle
    assert len(bench.clients["tokenizer0"].finish) == (3 if spoil is lost_key else 4)
