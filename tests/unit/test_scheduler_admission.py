"""What is let in, in which order, and what is answered to the rest."""

import pytest

from messages.admit import Abort, Admit
from messages.sampling import SamplingParams
from scheduler.errors import ContractError
from scheduler.waiting import AGEING_SECONDS
from tests.support.null_answers import reference
from tests.support.scheduler_bench import Bench, attached, prompt_of
from transport.columns import pack_i32


def admit(prompt: bytes = pack_i32([1]), keys: tuple[int, ...] = (900,), seeds: tuple[int, ...] = (1,), tokenizer: str = "tokenizer0") -> Admit:
    return Admit(tokenizer=tokenizer, keys=list(keys), seeds=list(seeds), prompt=prompt, sampling=SamplingParams(), end_ids=[])


@pytest.mark.parametrize(
    "message",
    [admit(prompt=b"abc"), admit(keys=(), seeds=()), admit(keys=(1, 2)), admit(keys=(1, 1), seeds=(1, 1)), admit(tokenizer="nobody")],
    ids=["column", "no keys", "few seeds", "one key twice", "unknown tokenizer"],
)
def test_a_frame_that_breaks_the_contract_changes_nothing(message: Admit) -> None:
    bench = Bench()
    with pytest.raises(ContractError):
        bench.engine.receive(message, bench.now)
    bench.engine.check()
    assert bench.engine.idle
    assert bench.engine.take() == []


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "code"),
    [
        ([], 4, "empty_prompt"),
        ([1], 0, "invalid_max_tokens"),
        ([29], 4, "invalid_token"),
        ([-1], 4, "invalid_token"),
        ([1] * 40, 4, "context_length_exceeded"),
    ],
)
def test_a_bad_request_is_refused_for_every_key(prompt: list[int], max_tokens: int, code: str) -> None:
    bench = Bench()
    keys = bench.admit(prompt, max_tokens, n=2)
    refused = bench.clients["tokenizer0"].refused
    assert [(refused[key].status, refused[key].code) for key in keys] == [(400, code)] * 2
    assert bench.engine.tally.counts["refused"] == 2
    assert bench.engine.tally.counts["accepted"] == 0


def test_a_live_key_is_refused_and_the_first_goes_on() -> None:
    bench = Bench()
    [key] = bench.admit(prompt_of(3), 6)
    bench.step()
    bench.engine.receive(admit(keys=(key, 901), seeds=(5, 6)), bench.now)
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert (client.refused[key].status, client.refused[key].code) == (409, "duplicate_key")
    assert client.tokens[key] == reference(key, prompt_of(3), 6, [], 40, 29)[0]
    assert 901 in client.finish
    assert bench.engine.tally.counts["prompt_tokens"] == 4


def test_a_key_may_come_again_after_its_end() -> None:
    bench = Bench()
    [key] = bench.admit(prompt_of(3), 6)
    bench.step()
    bench.abort([key])
    bench.clients["tokenizer0"].tokens.clear()
    bench.engine.receive(admit(keys=(key,)), bench.now)
    bench.settle()
    assert key in bench.clients["tokenizer0"].finish


def test_the_queue_is_bounded_in_sequences() -> None:
    bench = Bench(attached(slots=1), max_queue=4)
    first = bench.admit(prompt_of(3), 6, n=3)
    second = bench.admit(prompt_of(3), 6, n=3)
    third = bench.admit(prompt_of(3), 6, n=2)
    problem = bench.clients["tokenizer0"].refused[second[0]]
    assert (problem.status, problem.code) == (429, "queue_full")
    assert problem.retry_after == 5.0
    assert sorted(bench.clients["tokenizer0"].refused) == second
    bench.settle()
    assert sorted(bench.clients["tokenizer0"].finish) == first + third


def test_requests_that_free_slots_take_at_once_are_no_queue() -> None:
    bench = Bench(attached(slots=3), max_queue=1)
    keys = [bench.admit(prompt_of(3), 6)[0] for _ in range(4)]
    [refused] = bench.admit(prompt_of(3), 6)
    bench.settle()
    assert sorted(bench.clients["tokenizer0"].finish) == keys
    assert bench.clients["tokenizer0"].refused[refused].code == "queue_full"


def test_an_empty_queue_takes_a_request_of_more_sequences_than_its_cap() -> None:
    bench = Bench(max_queue=1)
    keys = bench.admit(prompt_of(3), 6, n=3)
    bench.settle()
    assert sorted(bench.clients["tokenizer0"].finish) == keys


def test_the_queue_is_bounded_in_tokens_but_takes_one_of_any_length() -> None:
    bench = Bench(max_queue_tokens=20)
    bench.admit(prompt_of(39), 1)
    [refused] = bench.admit(prompt_of(1), 1)
    bench.settle()
    assert bench.clients["tokenizer0"].refused[refused].code == "queue_full"
    kept = bench.admit(prompt_of(10), 1) + bench.admit(prompt_of(10), 1)
    bench.settle()
    assert set(kept) <= set(bench.clients["tokenizer0"].finish)


def test_retry_after_comes_from_the_measured_speed() -> None:
    bench = Bench(max_queue=300, max_queue_tokens=500)
    bench.admit(prompt_of(30), 8)
    bench.settle()
    keys = [bench.admit(prompt_of(10), 8)[0] for _ in range(60)]
    problem = bench.clients["tokenizer0"].refused[keys[-1]]
    assert problem.retry_after is not None
    assert 1.0 <= problem.retry_after < 60.0
    assert problem.retry_after != 5.0


def test_everything_is_queued_before_a_worker_is_attached() -> None:
    bench = Bench(start=False)
    good, long, bad = bench.admit(prompt_of(5), 3), bench.admit(prompt_of(60), 3), bench.admit([500], 3)
    bench.plan()
    assert bench.engine.gauges()["waiting"] == 3
    assert bench.engine.geometry is None
    assert bench.engine.overdue(1e9) is None
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert list(client.finish) == [long[0], bad[0], good[0]]
    assert [client.problems[key].code for key in long + bad] == ["context_length_exceeded", "invalid_token"]
    assert bench.engine.tally.counts["errors"] == 2


def finishing_order(bench: Bench) -> list[int]:
    return list(bench.clients["tokenizer0"].finish)


def test_first_come_first_served_within_a_priority() -> None:
    bench = Bench(attached(slots=1))
    keys = [bench.admit(prompt_of(2), 2)[0] for _ in range(5)]
    bench.settle()
    assert finishing_order(bench) == keys


def test_a_higher_priority_is_more_urgent() -> None:
    bench = Bench(attached(slots=1))
    low, normal, high = (bench.admit(prompt_of(2), 2, priority=priority)[0] for priority in (-1, 0, 1))
    bench.settle()
    assert finishing_order(bench) == [high, normal, low]


def test_waiting_makes_urgent() -> None:
    bench = Bench(attached(slots=1))
    [old] = bench.admit(prompt_of(2), 2, priority=0)
    bench.now += 2.5 * AGEING_SECONDS
    [later] = bench.admit(prompt_of(2), 2, priority=2)
    [urgent] = bench.admit(prompt_of(2), 2, priority=3)
    bench.settle()
    assert finishing_order(bench) == [urgent, old, later]


def test_a_large_request_is_not_overtaken_for_ever() -> None:
    bench = Bench(attached(blocks=10, slots=4))
    [running] = bench.admit(prompt_of(4), 8)
    bench.step()
    [large] = bench.admit(prompt_of(30), None)
    small = [bench.admit(prompt_of(2), 2)[0] for _ in range(6)]
    bench.settle()
    assert list(bench.clients["tokenizer0"].tokens) == [running, large, *small]


def test_unlimited_requests_run_in_a_small_pool() -> None:
    bench = Bench(attached(blocks=10, block_size=4, slots=4, context=40))
    keys = [bench.admit(prompt_of(5, i), None)[0] for i in range(5)]
    bench.settle()
    for i, key in enumerate(keys):
        assert bench.clients["tokenizer0"].tokens[key] == reference(key, prompt_of(5, i), None, [], 40, 29)[0]


def test_many_cancelled_in_the_queue_leave_nothing() -> None:
    bench = Bench(attached(slots=1))
    keys = bench.admit(prompt_of(2), 2, n=200)
    bench.engine.receive(Abort(keys[:150]), bench.now)
    bench.engine.check()
    assert bench.engine.gauges()["waiting_tokens"] == 100
    bench.settle()
    assert finishing_order(bench) == keys[150:]


def test_closing_refuses_new_and_finishes_old() -> None:
    bench = Bench()
    [old] = bench.admit(prompt_of(2), 5)
    bench.engine.close()
    [new] = bench.admit(prompt_of(2), 5)
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert client.refused[new].status == 503
    assert old in client.finish
