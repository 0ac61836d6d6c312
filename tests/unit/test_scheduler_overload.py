"""Overload as the scheduler sees it: what is predicted, and what is refused for it and until when."""

import math
from random import Random
from typing import Any

import numpy as np
import pytest

from messages.text import Problem
from scheduler.deadlines import Work
from scheduler.forecast import ANSWERS, LEAST_FRESH, LONGEST, LOOKED_UP, SHORTEST, UNKNOWN, Forecast, Rate, retry_after
from scheduler.pace import Pace
from scheduler.tally import Tally
from tests.support.scheduler_bench import Bench, attached, prompt_of

STEP = 0.01
"""Seconds that each message of the bench's worker takes."""
AHEAD = 2
"""Plans in flight, after which a slot is free."""


def busy(slots: int = 2, answer: int = 8, **changes: Any) -> Bench:
    """A worker with nothing cached whose speed has been measured: answers of so many tokens, each of STEP."""
    bench = Bench(attached(slots=slots, blocks=200, step_tokens=32), prefix_cache=False, chunk_tokens=16, **changes)
    for number in range(2 * slots):
        bench.admit(prompt_of(8, number), answer)
    bench.settle()
    return bench


def refusal(bench: Bench, key: int) -> Problem | None:
    return bench.clients["tokenizer0"].refused.get(key)


# What is predicted


def test_a_rate_forgets_old_seconds() -> None:
    speed = Rate()
    assert speed.seconds_for(1000) is None
    speed.add(1000, 1.0)
    assert speed.seconds_for(5000) == 5.0
    for _ in range(100):
        speed.add(100, 1.0)
    assert 45.0 < (speed.seconds_for(5000) or 0.0) < 55.0


def test_prompts_are_read_in_chunks_at_what_steps_and_tokens_cost() -> None:
    session = Bench(attached(slots=2, step_tokens=20), chunk_tokens=50).engine.session
    assert session is not None
    forecast = Forecast(Tally(), Pace(None, 50), 1)
    forecast.add(Work(0, 2, 0), 1.0)
    assert forecast.reading(session, 5) is None
    assert forecast.reading(session, 0) == 0.0
    forecast.add(Work(10, 2, 0), 2.0)
    assert forecast.reading(session, 5) == pytest.approx(1.0 + 0.5)
    assert forecast.reading(session, 30) == pytest.approx(2 * 1.0 + 3.0)
    alike = Forecast(Tally(), Pace(None, 50), 1)
    alike.add(Work(10, 0, 0), 0.2)
    alike.add(Work(10, 0, 0), 0.2)
    assert alike.reading(session, 30) == pytest.approx(0.6)
    quick = Forecast(Tally(), Pace(None, 50), 1)
    for prefill, seconds in ((0, 0.9), (10, 0.1), (0, 9.0), (10, 0.1)):
        quick.add(Work(prefill, 1, 0), seconds)
    assert 0.0 < (quick.reading(session, 10) or 0.0) <= 10.0, "a step with more tokens that is quicker is no gain"


def test_retry_after_is_rounded_up_and_never_more_than_an_hour() -> None:
    assert [retry_after(seconds) for seconds in (None, 0.0, 2.01, 1e9)] == [UNKNOWN, SHORTEST, 2.3, LONGEST]


def test_nothing_is_predicted_before_it_was_measured() -> None:
    bench = Bench(attached(slots=1))
    session, forecast = bench.engine.session, bench.engine._forecast
    assert session is not None
    assert forecast.turn(session, 1, 0, "") == 0.0
    assert forecast.turn(session, 2, 0, "") is None, "nobody runs who could end"
    assert forecast.turn(session, 1, 5, "") is None
    assert forecast.first_token(session, 1, 0, 5, "") is None
    assert forecast.freed(session.slots, 10) is None
    bench.admit(prompt_of(3), 6)
    bench.plan()
    assert forecast.endings(session.slots, 1) is None
    bench.step()
    assert forecast.endings(session.slots, 1) is None, "a prompt was read, and no token decoded"
    bench.step()
    assert forecast.endings(session.slots, 1) == pytest.approx((4 + AHEAD) * STEP), "the limit, before anything is known of answers"
    assert forecast.endings(session.slots, 2) == pytest.approx((6 + 4 + 2 * AHEAD) * STEP)


def test_rows_end_when_they_are_as_long_as_the_last_answers_or_at_their_limits() -> None:
    bench = busy(slots=4)
    session, forecast = bench.engine.session, bench.engine._forecast
    assert session is not None
    for number, limit in enumerate((30, 30, 30, 3)):
        bench.admit(prompt_of(4, number), limit)
    bench.plan()
    bench.step()
    bench.plan()
    endings = [forecast.endings(session.slots, number) for number in range(6)]
    assert endings == pytest.approx([0.0] + [(left + AHEAD) * STEP for left in (2, 7, 7, 7, 8 + AHEAD + 2)])
    for _ in range(9):
        bench.step()
    assert forecast.endings(session.slots, 1) == pytest.approx((8 / 3 + AHEAD) * STEP, rel=0.3), "late rows are taken to be spread evenly"
    assert forecast.endings(session.slots, 3) == pytest.approx((forecast._length(session.slots) + AHEAD) * STEP)


def test_old_answers_are_forgotten() -> None:
    forecast = Forecast(Tally(), Pace(None, 16), 1)
    for length in (100, 10):
        for _ in range(4 * ANSWERS):
            forecast.ended(length)
    assert forecast._length(None) == pytest.approx(10, rel=0.5)  # type: ignore[arg-type]


def test_prompts_cost_what_was_not_cached_lately() -> None:
    tally = Tally()
    forecast = Forecast(tally, Pace(None, 16), 1)
    assert forecast.fresh(100) == 100
    tally.add("prefix_queries", 1000)
    tally.add("prefix_hits", 750)
    assert forecast.fresh(100) == 25
    tally.add("prefix_queries", 4 * LOOKED_UP)
    shares = [forecast.fresh(100) for _ in range(12)]
    assert shares[0] > 99
    tally.add("prefix_queries", LOOKED_UP)
    tally.add("prefix_hits", LOOKED_UP)
    assert forecast.fresh(100) == pytest.approx(100 * LEAST_FRESH, abs=50)


def test_who_waits_for_blocks_waits_for_an_ending_though_slots_are_free() -> None:
    bench = busy(slots=4)
    session, forecast = bench.engine.session, bench.engine._forecast
    assert session is not None
    bench.admit(prompt_of(4), 8)
    bench.step()
    bench.plan()
    assert forecast.turn(session, 1, 0, "slot") == 0.0
    assert forecast.turn(session, 1, 0, "blocks") == pytest.approx((7 + AHEAD) * STEP)


def test_others_and_those_that_return_go_before() -> None:
    bench = Bench(start=False)
    for tenant, priority in (("a", 0), ("a", 0), ("a", -5), ("b", 0), ("b", 0), ("b", 0), ("c", 0)):
        bench.admit(prompt_of(4), 8, tenant=tenant, priority=priority)
    waiting = bench.engine._waiting
    assert waiting.ahead("a", bench.now + 1) == (2 + 3 + 1, 24.0)
    assert waiting.ahead("new", bench.now) == (1 + 1 + 1, 12.0)
    assert Bench(start=False).engine._waiting.ahead("a", 0.0) == (0, 0.0)
    first = next(iter(bench.engine._live.values()))
    waiting.remove(first)
    first.ran = True
    waiting.push(first)
    assert waiting.ahead("new", bench.now)[0] == 1 + 3


# What is refused, and until when


def admitted_after(bench: Bench, prompt: list[int], limit: int, told: float, timeout: float | None = None) -> float:
    """Seconds after which the same request is let in, asked again and again, up to the time that was told."""
    began = bench.now
    while True:
        [key] = bench.admit(prompt, limit, timeout=timeout)
        if refusal(bench, key) is None:
            bench.abort([key])
            return bench.now - began
        assert bench.now < began + told, f"not let in after {told} s: {refusal(bench, key)}"
        bench.run_until(min(began + told, bench.now + STEP))


CAPS: dict[str, dict[str, Any]] = {
    "sequences": {"max_queue": 3},
    "prompt tokens in line": {"max_queue_tokens": 40},
    "all tokens": {"max_live_tokens": 150},
    "seconds in line": {"max_queue_seconds": 1.3},
    "a timeout": {},
}


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("seed", range(2))
def test_who_waits_as_long_as_he_was_told_is_let_in(cap: str, slots: int, seed: int) -> None:
    """With answers of different lengths, and every token of prompt and answer slow: steps of STEP seconds, and a second more now and then."""
    chance = Random(f"{cap}/{slots}/{seed}")
    bench = busy(slots, 12, **CAPS[cap])
    timeout = 1.4 if cap == "a timeout" else None
    refused: Problem | None = None
    prompt: list[int] = []
    for number in range(200):
        prompt = prompt_of(chance.randrange(2, 20), number)
        [key] = bench.admit(prompt, 12, timeout=timeout)
        refused = refusal(bench, key)
        if refused is not None:
            break
        for _ in range(chance.randrange(2)):
            bench.step()
    assert refused is not None
    assert (refused.status, refused.code) == (429, "queue_full" if cap in ("sequences", "prompt tokens in line", "all tokens") else "queue_too_slow")
    assert refused.retry_after is not None
    waited = admitted_after(bench, prompt, 12, refused.retry_after, timeout)
    assert refused.retry_after <= max(SHORTEST, 3 * waited + 0.2), "and not much sooner"


def test_a_request_that_would_wait_for_too_long_is_refused_and_counted() -> None:
    bench = busy(slots=1, max_queue_seconds=0.2)
    kept = [bench.admit(prompt_of(4), 8)[0] for _ in range(4)]
    bench.step()
    [late] = bench.admit(prompt_of(4), 8)
    problem = refusal(bench, late)
    assert problem is not None
    assert (problem.status, problem.code) == (429, "queue_too_slow")
    assert "0.2 s that requests may wait here" in problem.message
    [urgent] = bench.admit(prompt_of(4), 8, priority=100)
    bench.settle()
    assert {*kept, urgent} <= bench.clients["tokenizer0"].finish.keys()
    counts = bench.engine.tally.counts
    assert (counts["refused"], counts["refused_slow"], counts["refused_full"]) == (1, 1, 0)


def test_a_timeout_that_cannot_be_met_is_refused_at_once_but_not_of_the_next_in_line() -> None:
    bench = busy(slots=1)
    bench.admit(prompt_of(4), 8)
    bench.step()
    bench.plan()
    [late] = bench.admit(prompt_of(4), 8, timeout=0.03)
    problem = refusal(bench, late)
    assert problem is not None
    assert problem.code == "queue_too_slow"
    assert "its timeout of 0.03 s" in problem.message
    bench.settle()
    [alone] = bench.admit(prompt_of(16), 8, timeout=1e-4)
    assert refusal(bench, alone) is None, "nobody is before it, so later would not be better"
    bench.plan()
    bench.step()
    bench.plan()
    assert bench.clients["tokenizer0"].problems[alone].code == "deadline_exceeded"


def test_nothing_is_refused_for_its_time_without_a_worker_or_a_measure() -> None:
    bench = Bench(start=False, max_queue_seconds=0.01)
    waiting = [bench.admit(prompt_of(4), 8, timeout=50.0)[0] for _ in range(20)]
    assert not bench.clients["tokenizer0"].refused
    bench.settle()
    assert sorted(bench.clients["tokenizer0"].finish) == waiting


def test_all_tokens_are_bounded_but_an_idle_scheduler_takes_any_request() -> None:
    bench = Bench(max_live_tokens=30)
    [first] = bench.admit(prompt_of(8), None)
    assert bench.engine.gauges()["live_tokens"] == 40, "without max_tokens an answer may fill the context"
    [second] = bench.admit(prompt_of(1), 1)
    problem = refusal(bench, second)
    assert problem is not None
    assert (problem.code, problem.retry_after) == ("queue_full", UNKNOWN)
    assert "1 sequences that may come to 40 tokens" in problem.message
    bench.settle()
    assert first in bench.clients["tokenizer0"].finish
    assert bench.engine.gauges()["live_tokens"] == 0
    kept = [bench.admit(prompt_of(5), 10)[0] for _ in range(2)]
    assert refusal(bench, bench.admit(prompt_of(5), 10)[0]) is not None
    bench.settle()
    assert set(kept) <= bench.clients["tokenizer0"].finish.keys()
    assert bench.engine.tally.counts["refused_full"] == 2


def test_tokens_that_more_sequences_hold_than_run_take_more_rounds() -> None:
    bench = busy(slots=1, max_live_tokens=100)
    for number in range(5):
        bench.admit(prompt_of(8, number), 12)
    bench.step()
    bench.plan()
    session, forecast = bench.engine.session, bench.engine._forecast
    assert session is not None
    assert forecast.freed(session.slots, 20) == forecast.endings(session.slots, 1)
    assert forecast.freed(session.slots, 21) == forecast.endings(session.slots, 2)
    assert forecast.freed(session.slots, 60) == forecast.endings(session.slots, 3)


def test_what_comes_again_is_let_in_whatever_it_would_wait() -> None:
    bench = busy(slots=1, max_queue_seconds=0.2, max_live_tokens=100)
    keys = [bench.admit(prompt_of(4), 8, timeout=60.0)[0] for _ in range(3)]
    bench.step()
    bench.scheduler_dies()
    bench.settle()
    assert set(keys) <= bench.clients["tokenizer0"].finish.keys()


# What overload does not do


def test_rows_are_not_preempted_again_and_again_when_more_wait_than_memory_holds() -> None:
    """Rows use their limits and there are blocks for a third of them: the share that admission leaves free grows until few are preempted."""
    bench = Bench(attached(blocks=60, block_size=4, slots=16, width=16, context=64, step_tokens=32), chunk_tokens=16, max_queue=1000)
    chance = Random(1)
    for number in range(240):
        bench.admit(prompt_of(chance.randrange(4, 20), number), chance.randrange(20, 40))
    bench.settle()
    counts = bench.engine.tally.counts
    assert counts["finished_length"] == 240
    assert counts["preemptions"] < 0.25 * counts["finished_length"]
    assert math.isclose(np.mean([len(tokens) for tokens in bench.clients["tokenizer0"].tokens.values()]), 30, abs_tol=2)
