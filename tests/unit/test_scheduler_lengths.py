"""Exactly the promised tokens, at every length where something could be off by one."""

import pytest

from messages.tokens import FINISH_LENGTH
from scheduler.engine import Engine
from tests.support.null_answers import reference
from tests.support.scheduler_bench import Bench, attached, prompt_of

BLOCK, CONTEXT, VOCAB = 16, 96, 29
GEOMETRY = attached(blocks=24, block_size=BLOCK, slots=4, width=8, step_tokens=64, context=CONTEXT, vocab=VOCAB)
LENGTHS = [1, 15, 16, 17, 31, 32, 33, CONTEXT - 2, CONTEXT - 1]


def check_against_reference(bench: Bench, key: int, prompt: list[int], max_tokens: int | None, end_ids: list[int], context: int) -> None:
    client = bench.clients["tokenizer0"]
    assert (client.tokens[key], client.finish[key]) == reference(key, prompt, max_tokens, end_ids, context, VOCAB)


def assert_at_rest(engine: Engine) -> None:
    gauges = engine.gauges()
    assert {name: gauges[name] for name in ("running", "waiting", "waiting_tokens", "slots_used", "blocks_used")} == {
        "running": 0,
        "waiting": 0,
        "waiting_tokens": 0,
        "slots_used": 0,
        "blocks_used": 0,
    }


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("max_tokens", [1, 2, 15, 16, 17, None])
@pytest.mark.parametrize("run_ahead", [1, 2, 3])
def test_one_request(length: int, max_tokens: int | None, run_ahead: int) -> None:
    bench = Bench(GEOMETRY, run_ahead=run_ahead)
    prompt = prompt_of(length)
    [key] = bench.admit(prompt, max_tokens)
    bench.settle()
    check_against_reference(bench, key, prompt, max_tokens, [], CONTEXT)
    expected = CONTEXT - length if max_tokens is None else min(max_tokens, CONTEXT - length)
    assert len(bench.clients["tokenizer0"].tokens[key]) == expected
    assert bench.clients["tokenizer0"].finish[key] == FINISH_LENGTH
    assert_at_rest(bench.engine)


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, 3 * CONTEXT])
def test_over_long_prompt_is_refused(length: int) -> None:
    bench = Bench(GEOMETRY)
    [key] = bench.admit(prompt_of(length), 1)
    problem = bench.clients["tokenizer0"].refused[key]
    assert (problem.status, problem.code) == (400, "context_length_exceeded")
    assert str(length) in problem.message
    assert str(CONTEXT) in problem.message
    assert_at_rest(bench.engine)


@pytest.mark.parametrize("chunk", [1, 7, 8, 16, 1000])
@pytest.mark.parametrize("run_ahead", [1, 2])
def test_prompt_lengths_around_the_chunk(chunk: int, run_ahead: int) -> None:
    bench = Bench(GEOMETRY, chunk_tokens=chunk, run_ahead=run_ahead)
    lengths = sorted({length for length in (1, chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 2 * chunk, 2 * chunk + 1) if 0 < length < CONTEXT - 4})
    wanted = [(bench.admit(prompt_of(length), 4, end_ids=[3]), length) for length in lengths]
    bench.settle()
    for [key], length in wanted:
        check_against_reference(bench, key, prompt_of(length), 4, [3], CONTEXT)
    for plan in bench.worker.plans:
        assert plan.prefill is None or len(plan.prefill.tokens) // 4 <= chunk


def test_decode_goes_on_between_the_chunks_of_a_long_prompt() -> None:
    bench = Bench(GEOMETRY, chunk_tokens=4)
    [first] = bench.admit(prompt_of(3), 40)
    for _ in range(6):
        bench.step()
    before = len(bench.clients["tokenizer0"].tokens[first])
    bench.admit(prompt_of(60), 2)
    for _ in range(10):
        bench.step()
    assert len(bench.clients["tokenizer0"].tokens[first]) >= before + 9
    assert any(plan.prefill is not None and plan.decode != b"" for plan in bench.worker.plans)


def test_more_slots_than_a_step_has_tokens() -> None:
    bench = Bench(attached(blocks=64, block_size=4, slots=8, width=8, step_tokens=3, context=30))
    keys = [bench.admit(prompt_of(2, i), 12)[0] for i in range(8)]
    bench.settle()
    for i, key in enumerate(keys):
        check_against_reference(bench, key, prompt_of(2, i), 12, [], 30)


def test_context_is_lowered_to_what_the_pool_holds() -> None:
    bench = Bench(attached(blocks=4, block_size=4, slots=3, width=50, context=200))
    assert bench.engine.geometry is not None
    assert bench.engine.geometry.context == 16
    keys = [
        bench.admit(prompt, max_tokens)[0]
        for prompt, max_tokens in [(prompt_of(15), 100), (prompt_of(10), None), (prompt_of(2), 2), (prompt_of(17), 1)]
    ]
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert [len(client.tokens.get(key, [])) for key in keys] == [1, 6, 2, 0]
    assert client.refused[keys[3]].status == 400
    assert_at_rest(bench.engine)


def test_max_context_lowers_the_limit() -> None:
    bench = Bench(GEOMETRY, max_context=20)
    [key] = bench.admit(prompt_of(18), None)
    bench.settle()
    assert len(bench.clients["tokenizer0"].tokens[key]) == 2


def test_steady_decode_sends_only_a_few_bytes() -> None:
    bench = Bench(attached(blocks=256, block_size=64, slots=8, width=8, step_tokens=64, context=128))
    for i in range(8):
        bench.admit(prompt_of(1, i), 60)
    bench.settle()
    steady = [plan for plan in bench.worker.plans if plan.decode is None]
    assert len(steady) > 40
    assert all(plan.append is None and plan.release == b"" for plan in steady)
