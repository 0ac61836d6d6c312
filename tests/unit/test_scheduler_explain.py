"""What the engine says of sequences that wait, prefill, decode, were preempted, or are not known."""

import pytest

from messages.explain import Explain, Explained, Standing
from scheduler.errors import ContractError
from scheduler.explain import ahead
from tests.support.scheduler_bench import Bench, attached, prompt_of


def ask(bench: Bench, *keys: int, tokenizer: str = "tokenizer1") -> list[Standing]:
    """The standings of these keys; the answer goes to the tokenizer that asked."""
    bench.engine.receive(Explain(key=77, frontend="frontend0", keys=list(keys), tokenizer=tokenizer), bench.now)
    ((name, answer),) = bench.engine.take()
    assert isinstance(answer, Explained)
    assert (name, answer.key, answer.frontend) == (tokenizer, 77, "frontend0")
    return answer.standings


def one(bench: Bench, key: int) -> Standing:
    (standing,) = ask(bench, key)
    assert standing.key == key
    return standing


def test_keys_that_are_not_live_are_left_out() -> None:
    bench = Bench()
    (key,) = bench.admit(prompt_of(4))
    assert [standing.key for standing in ask(bench, 1000, key)] == [key]
    bench.settle()
    assert ask(bench, key) == []


def test_a_question_of_nobody_breaks_the_contract() -> None:
    bench = Bench()
    with pytest.raises(ContractError):
        bench.engine.receive(Explain(key=1, frontend="frontend0", keys=[1]), bench.now)
    assert bench.engine.take() == []


def test_without_a_worker() -> None:
    bench = Bench(start=False)
    (first,) = bench.admit(prompt_of(5))
    (urgent,) = bench.admit(prompt_of(6, 1), priority=1)
    assert ask(bench, first, urgent) == [
        Standing(key=first, state="waiting", prompt_tokens=5, place=2, waits_for="worker"),
        Standing(key=urgent, state="waiting", prompt_tokens=6, place=1, waits_for="worker"),
    ]


def test_from_the_line_to_the_last_token() -> None:
    bench = Bench(chunk_tokens=8, run_ahead=1)
    (key,) = bench.admit(prompt_of(12), max_tokens=4)
    assert one(bench, key) == Standing(key=key, state="waiting", prompt_tokens=12, place=1, waits_for="turn", start_seconds=0.0)
    bench.plan()
    assert one(bench, key) == Standing(key=key, state="prefill", prompt_tokens=12, computed_tokens=8)
    bench.step()
    standing = one(bench, key)
    assert (standing.state, standing.computed_tokens) == ("prefill", 8)
    assert standing.first_token_seconds == pytest.approx(4 * 0.01 / 8)  # 8 tokens took 10 ms; 4 are left
    bench.plan()
    standing = one(bench, key)
    assert (standing.state, standing.computed_tokens, standing.first_token_seconds) == ("decode", 12, 0.0)
    bench.step()
    bench.plan()
    assert one(bench, key) == Standing(key=key, state="decode", prompt_tokens=12, computed_tokens=13, generated_tokens=1)


def test_the_line_waits_for_a_slot_and_for_its_turn() -> None:
    bench = Bench(attached(slots=1, blocks=100))
    (running,) = bench.admit(prompt_of(6), max_tokens=20)
    for _ in range(4):
        bench.step()
    (first,) = bench.admit(prompt_of(8, 1))
    (second,) = bench.admit(prompt_of(9, 2))
    bench.plan()
    bench.step()
    head, behind = ask(bench, first, second)
    assert (head.place, head.waits_for, behind.place, behind.waits_for) == (1, "slot", 2, "turn")
    assert one(bench, running).state == "decode"
    assert head.first_token_seconds is not None
    assert behind.first_token_seconds is not None
    assert head.first_token_seconds < behind.first_token_seconds
    assert head.start_seconds is not None
    assert 0 < head.start_seconds < head.first_token_seconds


def test_a_prediction_counts_the_sequences_that_must_end() -> None:
    """One slot, so two in line wait for one and two endings."""
    bench = Bench(attached(slots=1, blocks=100), prefix_cache=False)
    bench.admit(prompt_of(4), max_tokens=10)
    bench.settle()
    bench.admit(prompt_of(4), max_tokens=20)
    bench.step()
    (first,) = bench.admit(prompt_of(8, 1))
    (second,) = bench.admit(prompt_of(8, 2))
    bench.plan()
    forecast, session = bench.engine._forecast, bench.engine.session
    assert session is not None
    head, behind = ask(bench, first, second)
    assert head.start_seconds == pytest.approx((9 + 2) * 0.01)
    assert behind.start_seconds == pytest.approx((9 + 2 + 10 + 2) * 0.01)
    assert head.first_token_seconds == pytest.approx((9 + 2) * 0.01 + (forecast.reading(session, 8) or 0.0))  # of 10 tokens each
    assert behind.first_token_seconds == pytest.approx((9 + 2 + 10 + 2) * 0.01 + (forecast.reading(session, 8) or 0.0))


def test_the_head_waits_for_blocks() -> None:
    bench = Bench(attached(blocks=6, width=6, context=24), chunk_tokens=16)
    (running,) = bench.admit(prompt_of(14), max_tokens=9)
    bench.step()
    (head,) = bench.admit(prompt_of(12, 1))
    bench.step()
    standing = one(bench, head)
    assert (standing.place, standing.waits_for) == (1, "blocks")
    assert one(bench, running).state == "decode"


def test_the_head_waits_for_room_in_a_step() -> None:
    bench = Bench(chunk_tokens=8, run_ahead=1)
    bench.admit(prompt_of(16))
    (head,) = bench.admit(prompt_of(12, 1))
    bench.plan()
    standing = one(bench, head)
    assert (standing.place, standing.waits_for) == (1, "tokens")


def test_another_choice_waits_for_the_prefix() -> None:
    bench = Bench(chunk_tokens=16, run_ahead=1)
    first, second = bench.admit(prompt_of(9), n=2)
    bench.plan()
    leader, other = ask(bench, first, second)
    assert (leader.state, other.state, other.waits_for) == ("decode", "waiting", "prefix")
    bench.step()
    bench.plan()
    other = one(bench, second)
    assert (other.state, other.cached_tokens, other.computed_tokens) == ("decode", 8, 9)


def test_preempted_sequences_wait_again_with_their_tokens() -> None:
    bench = Bench(attached(blocks=7, width=7, context=28), chunk_tokens=16)
    rows = [*bench.admit(prompt_of(9), max_tokens=18), *bench.admit(prompt_of(9, 1), max_tokens=18)]
    seen: set[str] = set()
    for _ in range(200):
        for standing in ask(bench, *rows):
            if standing.preemptions and standing.state == "waiting":
                seen.add("preempted")
                assert standing.generated_tokens > 0
                assert standing.first_token_seconds is None
                assert standing.computed_tokens == 0
            elif standing.preemptions and standing.state == "decode":
                seen.add("came back")
        if not bench.step():
            break
    assert seen == {"preempted", "came back"}


def test_who_is_ahead_among_tenants_and_those_that_return() -> None:
    bench = Bench(start=False)
    keys = [key for number in range(5) for key in bench.admit(prompt_of(2 + number, number))]
    requests = [bench.engine._live[key] for key in keys]
    for request, tenant, ran in zip(requests, ["a", "a", "b", "b", "b"], [False, False, False, True, True], strict=True):
        request.tenant, request.ran = tenant, ran
    assert [ahead(requests)[key] for key in keys] == [(2, 11), (4, 17), (2, 11), (0, 0), (1, 5)]
    assert ahead([]) == {}
