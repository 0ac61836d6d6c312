"""Fair shares, cache hits in the line, pace and headroom."""

import numpy as np
import pytest

from scheduler.headroom import LONGEST, MOST, Headroom
from scheduler.pace import FIRST, LEAST, Pace
from scheduler.shares import QUANTUM, Shares
from scheduler.waiting import MOST_PASSES, WINDOW
from tests.support.scheduler_bench import Bench, attached, prompt_of


def starts(bench: Bench) -> list[int]:
    """Keys in order of their first token."""
    return list(bench.clients["tokenizer0"].tokens)


def test_a_lone_tenant_owes_nothing() -> None:
    shares = Shares()
    shares.join("a")
    shares.charge("a", 10**9)
    shares.join("b")
    shares.charge("a", 5 * QUANTUM)
    assert shares.turn(["a", "b"]) == "b"
    shares.leave("b")
    shares.join("b")
    assert shares.turn(["a"]) == "a"


def test_tenants_are_served_in_proportion_to_tokens() -> None:
    shares = Shares()
    for tenant in "abc":
        shares.join(tenant)
    cost = {"a": 100, "b": 1000, "c": 3000}
    used = dict.fromkeys("abc", 0)
    for _ in range(3000):
        tenant = shares.turn("abc")
        shares.charge(tenant, cost[tenant])
        used[tenant] += cost[tenant]
    assert max(used.values()) - min(used.values()) <= 2 * QUANTUM + max(cost.values())


def test_debts_and_hoards_end_with_the_last_request() -> None:
    shares = Shares()
    for tenant in ("a", "b", "b"):
        shares.join(tenant)
    shares.charge("a", 100 * QUANTUM)
    assert shares.turn(["a", "b"]) == "b"
    shares.leave("a")
    shares.join("a")
    shares.charge("b", QUANTUM)
    assert shares.turn(["a", "b"]) == "a"
    assert len(shares) == 2


def test_a_flood_of_one_tenant_does_not_hold_up_another() -> None:
    bench = Bench(attached(slots=1, blocks=40), max_queue=500)
    flood = [bench.admit(prompt_of(20, i), 4, tenant="flood")[0] for i in range(60)]
    few = [bench.admit(prompt_of(20, 100 + i), 4, tenant="few")[0] for i in range(5)]
    bench.settle()
    order = starts(bench)
    assert [order.index(key) for key in flood] == sorted(order.index(key) for key in flood)
    assert max(order.index(key) for key in few) < len(order) - 1


def test_generated_tokens_are_charged_too() -> None:
    bench = Bench(attached(slots=1, blocks=40, context=2000, width=600), max_queue=500)
    long = [bench.admit(prompt_of(2, i), 36, tenant="long")[0] for i in range(80)]
    short = [bench.admit(prompt_of(2, i), 1, tenant="short")[0] for i in range(80)]
    bench.settle()
    order = starts(bench)
    assert max(order.index(key) for key in short) < order.index(long[-1]) - 10


def test_the_longest_cache_hit_goes_first_but_nobody_is_passed_for_ever() -> None:
    bench = Bench(attached(slots=1, blocks=60), max_queue=100)
    cached = prompt_of(20, 7)
    bench.admit(cached, 1)
    bench.settle()
    [running] = bench.admit(prompt_of(3), 3)
    bench.step()
    [cold] = bench.admit(prompt_of(20, 8), 1)
    hits = [bench.admit([*cached[:16], i], 1)[0] for i in range(12)]
    bench.settle()
    order = starts(bench)
    assert order[1] == running
    assert order[2 : 2 + MOST_PASSES] == hits[:MOST_PASSES]
    assert order[2 + MOST_PASSES] == cold


def test_hits_do_not_go_before_a_higher_priority() -> None:
    bench = Bench(attached(slots=1, blocks=60), max_queue=100)
    cached = prompt_of(20, 7)
    bench.admit(cached, 1)
    bench.settle()
    bench.admit(prompt_of(3), 3)
    bench.step()
    [hit] = bench.admit([*cached[:16], 3], 1)
    [urgent] = bench.admit(prompt_of(20, 8), 1, priority=1)
    for i in range(WINDOW):
        bench.admit(prompt_of(20, 9 + i), 1)
    bench.settle()
    assert starts(bench)[2:4] == [urgent, hit]


def test_pace_cuts_chunks_to_the_target() -> None:
    pace = Pace(0.05, 512)
    assert pace.chunk(0) == 512
    assert pace.chunk(4) == FIRST
    for _ in range(100):
        pace.add(0, 4, 0.01)
        pace.add(100, 4, 0.01 + 100 * 0.0005)
    assert 75 <= pace.chunk(4) <= 85
    pace.add(100, 4, 0.0)
    pace.add(1, 4, 9.0)
    pace.add(0, 0, 9.0)
    assert 75 <= pace.chunk(4) <= 85
    for _ in range(100):
        pace.add(0, 4, 0.2)
    assert pace.chunk(4) == LEAST
    for _ in range(100):
        pace.add(0, 4, 0.001)
        pace.add(100, 4, 0.002)
    assert pace.chunk(4) == 512
    assert pace.chunk(0) == 512


def test_pace_stays_finite() -> None:
    pace = Pace(0.005, 256)
    pace.add(64, 1, 0.030)
    pace.add(0, 64, 0.030)
    for _ in range(5000):
        assert LEAST <= pace.chunk(1) <= 256
        pace.add(256, 1, 0.010)
    for seconds in (float("nan"), float("inf"), -1.0, 1e300, 0.0):
        pace.add(64, 1, seconds)
        pace.add(0, 1, seconds)
        assert LEAST <= pace.chunk(1) <= 256


def test_pace_learns_from_prompts_alone() -> None:
    pace = Pace(0.05, 512)
    pace.add(100, 0, 0.1)
    assert pace.chunk(1) == 50
    assert Pace(None, 512).chunk(9) == 512


def test_headroom_follows_preemptions() -> None:
    headroom = Headroom(16)
    remaining = np.asarray([100, 10_000_000], dtype=np.int32)
    assert headroom.blocks(remaining) == 2
    headroom.preempted()
    assert headroom.blocks(remaining) == 2 + int(0.1 * (100 + LONGEST)) // 16
    for _ in range(20):
        headroom.preempted()
    assert headroom.share == MOST
    for _ in range(5000):
        headroom.planned()
    assert headroom.share == 0.0


@pytest.mark.parametrize("target", [0.001, 10.0])
def test_a_target_changes_no_token(target: float) -> None:
    outputs = []
    for target_itl in (None, target):
        bench = Bench(target_itl=target_itl)
        for i in range(6):
            bench.admit(prompt_of(25, i), 8)
            bench.step()
        bench.settle()
        outputs.append(bench.clients["tokenizer0"].tokens)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(("waited", "high_first"), [(0.0, True), (200.0, False)])
def test_a_preempted_row_keeps_a_higher_priority_waiting_only_when_it_has_aged(waited: float, high_first: bool) -> None:
    bench = Bench(attached(blocks=9, block_size=4, slots=3, width=9, context=36))
    bench.admit(prompt_of(6), 28, priority=1)
    bench.step()
    low = [bench.admit(prompt_of(6, i), 24, priority=-10)[0] for i in (1, 2)]
    while not bench.engine.tally.counts["preemptions"]:
        bench.step()
    bench.now += waited
    [high] = bench.admit(prompt_of(6, 3), 4, priority=10)
    head = bench.engine._waiting.next(lambda request: 0)
    assert head is not None
    assert head.key == (high if high_first else low[-1])
    bench.settle()
    assert {high, *low} <= set(bench.clients["tokenizer0"].finish)
