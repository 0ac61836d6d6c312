"""Views of the scheduler for people: rows, line and blocks as they are, and what they cost when the line is long."""

import time

import numpy as np
import pytest
import zmq

from messages.live import BLOCK_CACHED, BLOCK_FREE, BLOCK_RUNNING, BLOCK_SHARED, DECODE, LIVE_FEED, MOST_LINE, PAUSED, PREFILL, LiveView
from messages.result import StepResult
from scheduler import views as views_module
from scheduler.step_times import StepTimes
from scheduler.views import Views
from tests.support.scheduler_bench import Bench, prompt_of, session_of
from tests.support.waiting import wait_until
from transport.columns import view_f32, view_i32, view_i64, view_u8
from transport.sockets import Subscription
from transport.watched_feed import WatchedFeed


def listen(listener: Subscription[LiveView]) -> LiveView:
    for _ in range(1000):
        if (heard := listener.latest()) is not None:
            return heard
        time.sleep(0.01)
    raise AssertionError("nothing was published")


def look(bench: Bench, views: Views) -> LiveView:
    return views.view(bench.engine.scene(), bench.now)


def blocks_of(view: LiveView) -> list[int]:
    """The state of each block."""
    packed = np.frombuffer(view.blocks_map, dtype=np.uint8)
    assert packed.size == -(-view.blocks // 4)
    return [int(state) for state in np.stack([packed >> shift & 3 for shift in (0, 2, 4, 6)], axis=1).ravel()[: view.blocks]]


def test_without_a_worker_there_is_the_line_alone() -> None:
    bench = Bench(start=False)
    keys = bench.admit(prompt_of(5)) + bench.admit(prompt_of(6, 1), priority=1)
    view = look(bench, Views())
    assert (view.slots, view.blocks, view.block_size, view.rows.slot, view.blocks_map, view.branches) == (0, 0, 0, b"", b"", [])
    assert (view.waiting, view.waiting_tokens) == (2, 11)
    assert [(one.key, one.place, one.waits_for) for one in view.line] == [(keys[1], 1, "worker"), (keys[0], 2, "worker")]
    assert view_f32(view.waited, 2).min() >= 0


def test_a_row_from_its_first_chunk_to_its_end() -> None:
    bench, views = Bench(chunk_tokens=8, run_ahead=1), Views()
    (key,) = bench.admit(prompt_of(12), max_tokens=4)
    bench.plan()
    view = look(bench, views)
    rows = view.rows
    assert (view.slots, view.block_size) == (session_of(bench).geometry.slots, session_of(bench).geometry.block_size)
    assert view_i64(rows.key, 1).tolist() == [key]
    numbers = [view_i32(column, 1)[0] for column in (rows.prompt, rows.length, rows.computed, rows.limit, rows.cached, rows.preemptions)]
    assert numbers == [12, 12, 8, 16, 0, 0]
    assert view_u8(rows.phase, 1).tolist() == [PREFILL]
    assert view_f32(rows.age, 1)[0] >= 0
    bench.step()
    bench.step()
    view = look(bench, views)
    assert view_u8(view.rows.phase, 1).tolist() == [DECODE]
    assert view_i32(view.rows.length, 1)[0] > 12
    bench.settle()
    assert look(bench, views).rows.slot == b""


def test_a_row_that_no_step_has_touched_is_paused() -> None:
    bench, views = Bench(chunk_tokens=8, run_ahead=1), Views()
    bench.admit(prompt_of(8), max_tokens=1)
    bench.admit(prompt_of(20, 1), max_tokens=1)
    bench.plan()
    look(bench, views)
    session = session_of(bench)
    session.slots.last_step[:] = 1
    look(bench, views)
    session._step += 1
    assert set(view_u8(look(bench, views).rows.phase).tolist()) == {PAUSED}


def test_blocks_are_free_or_running_or_shared_or_cached() -> None:
    bench, views = Bench(run_ahead=1), Views()
    size = session_of(bench).geometry.block_size
    first = prompt_of(3 * size + 1)
    bench.admit(first, max_tokens=1)
    bench.settle()
    states = blocks_of(look(bench, views))
    assert (states.count(BLOCK_CACHED), states.count(BLOCK_RUNNING), states.count(BLOCK_SHARED)) == (3, 0, 0)
    bench.admit(first, max_tokens=2 * size)
    bench.admit([*first[: 2 * size], *prompt_of(size, 7)], max_tokens=2 * size)
    bench.plan()
    assert blocks_of(look(bench, views)) == states  # not looked at again within a second
    bench.now += views_module.MAP_SECONDS
    view = look(bench, views)
    states = blocks_of(view)
    assert (states.count(BLOCK_SHARED), states.count(BLOCK_CACHED)) == (2, 0)
    assert states.count(BLOCK_RUNNING) > 1
    assert states.count(BLOCK_FREE) == view.blocks - states.count(BLOCK_RUNNING) - 2
    assert (view.branches[0].blocks, view.branches[0].users) == (4, 2)
    bench.settle()


def test_a_new_session_is_looked_at_at_once() -> None:
    bench, views = Bench(run_ahead=1), Views()
    bench.admit(prompt_of(20), max_tokens=1)
    bench.settle()
    assert look(bench, views).branches
    bench.engine.session = None
    view = look(bench, views)
    assert (view.blocks_map, view.branches) == (b"", [])


def test_a_long_line_is_cut_and_a_very_long_one_only_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, views = Bench(start=False), Views()
    for number in range(MOST_LINE + 3):
        bench.admit(prompt_of(2, number))
    view = look(bench, views)
    assert [one.place for one in view.line] == [*range(1, MOST_LINE + 1)]
    bench.admit(prompt_of(2))
    assert look(bench, views).line is view.line  # a long line is looked through less often
    monkeypatch.setattr(views_module, "MOST_SORTED", MOST_LINE)
    bench.now += 1.0
    view = look(bench, views)
    assert (view.line, view.waited, view.waiting) == ([], b"", MOST_LINE + 4)


def test_seconds_are_counted() -> None:
    times = StepTimes(2.0)
    for seconds in (0.5, float("nan"), -1.0, 1e9):
        times.received(StepResult(session=1, step=1, slot=b"", token=b"", status=b"", seconds=seconds))
    times.received(look(Bench(), Views()))
    times.planned(0.25)
    assert times.counters(5.0) == {"seconds": 3.0, "worker_seconds": 0.5, "plan_seconds": 0.25}


def test_a_feed_knows_its_listeners(run_dir: str) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    feed = WatchedFeed(context, run_dir, LIVE_FEED)
    assert not feed.watched
    listener: Subscription[LiveView] = Subscription(context, run_dir, LIVE_FEED, LiveView)
    wait_until(lambda: feed.watched)
    view = look(Bench(), Views())
    feed.publish(view)
    assert listen(listener) == view
    listener.close()
    wait_until(lambda: not feed.watched)
    feed.close()
    context.term()
