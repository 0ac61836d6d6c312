"""What is shared, copied, preempted and given back."""

import pytest

from messages.sampling import SamplingParams
from messages.tokens import FINISH_ERROR
from tests.support.null_answers import POISON_SEED_MARK, reference
from tests.support.scheduler_bench import Bench, attached, prompt_of
from transport.columns import I32, view_i32

ROOMY = attached(blocks=64, block_size=4, slots=6, width=16, step_tokens=64, context=60)


def tokens(bench: Bench, key: int) -> list[int]:
    return bench.clients["tokenizer0"].tokens[key]


def prefilled(bench: Bench) -> int:
    """Prompt tokens the worker has computed so far."""
    return sum(len(plan.prefill.tokens) // 4 for plan in bench.worker.plans if plan.prefill is not None)


def counts(bench: Bench) -> dict[str, int]:
    return bench.engine.tally.counts


@pytest.mark.parametrize("length", [3, 4, 5, 8, 16])
def test_a_prompt_that_is_wholly_cached_computes_at_least_one_token(length: int) -> None:
    bench = Bench(ROOMY)
    prompt = prompt_of(length)
    first = bench.admit(prompt, 4)
    bench.settle()
    later = [bench.admit(prompt, 4)[0] for _ in range(4)]
    bench.settle()
    client = bench.clients["tokenizer0"]
    for key in first + later:
        assert tokens(bench, key) == reference(key, prompt, 4, [], 60, 29)[0]
    shared = (length - 1) // 4 * 4
    assert client.cached == {key: shared for key in later if shared}
    assert counts(bench)["prefix_hits"] == 4 * shared


def test_output_is_cached_too() -> None:
    bench = Bench(ROOMY)
    prompt = prompt_of(9)
    [first] = bench.admit(prompt, 12)
    bench.settle()
    second = [*prompt, *tokens(bench, first), 1, 2, 3]
    [key] = bench.admit(second, 4)
    bench.settle()
    assert bench.clients["tokenizer0"].cached[key] == 20  # 21 known, the last token never had KV


def test_rows_of_one_step_share_what_the_first_computes() -> None:
    bench = Bench(ROOMY)
    prompt = prompt_of(22)
    keys = [bench.admit([*prompt, i], 3)[0] for i in range(5)]
    bench.settle()
    assert prefilled(bench) == 23 + 4 * 3
    assert len({tuple(tokens(bench, key)) for key in keys}) > 1


def test_choices_copy_the_last_block_and_compute_one_token() -> None:
    bench = Bench(ROOMY)
    prompt = prompt_of(23)
    keys = bench.admit(prompt, 6, n=4)
    bench.settle()
    for key in keys:
        assert tokens(bench, key) == reference(key, prompt, 6, [], 60, 29)[0]
    assert prefilled(bench) == 23 + 3
    assert counts(bench)["copied_blocks"] == 3
    assert sum(len(view_i32(plan.copies.source)) for plan in bench.worker.plans if plan.copies is not None) == 3


def test_without_the_cache_choices_still_share_and_nothing_else_does() -> None:
    bench = Bench(ROOMY, prefix_cache=False)
    prompt = prompt_of(23)
    bench.admit(prompt, 6, n=4)
    bench.settle()
    assert prefilled(bench) == 23 + 3
    bench.admit(prompt, 6)
    bench.settle()
    assert prefilled(bench) == 23 + 3 + 23
    assert bench.engine.gauges()["blocks_cached"] == 0


@pytest.mark.parametrize("other", [{"tenant": "b"}, {"cache_salt": "b"}, {"tenant": "1:", "cache_salt": ""}])
def test_salts_and_tenants_never_share(other: dict[str, str]) -> None:
    bench = Bench(ROOMY)
    prompt = prompt_of(20)
    bench.admit(prompt, 2)
    bench.settle()
    [stranger] = bench.admit(prompt, 2, **other)  # type: ignore[arg-type]
    bench.settle()
    [again] = bench.admit(prompt, 2, **other)  # type: ignore[arg-type]
    bench.settle()
    assert bench.clients["tokenizer0"].cached == {again: 16}
    assert tokens(bench, stranger) == reference(stranger, prompt, 2, [], 60, 29)[0]


def test_the_salt_cannot_be_forged_by_a_tenant_name() -> None:
    bench = Bench(ROOMY)
    prompt = prompt_of(20)
    bench.admit(prompt, 2, tenant="a", cache_salt="bc")
    bench.admit(prompt, 2, tenant="ab", cache_salt="c")
    bench.settle()
    assert bench.clients["tokenizer0"].cached == {}


def test_rows_are_preempted_and_continue_without_a_seam() -> None:
    bench = Bench(attached(blocks=9, block_size=4, slots=4, width=9, context=36))
    prompts = [prompt_of(6, i) for i in range(4)]
    keys = [bench.admit(prompt, 24)[0] for prompt in prompts]
    bench.settle()
    assert counts(bench)["preemptions"] > 0
    for key, prompt in zip(keys, prompts, strict=True):
        assert tokens(bench, key) == reference(key, prompt, 24, [], 36, 29)[0]
    assert list(bench.clients["tokenizer0"].finish) == keys  # the youngest were preempted


def test_the_lowest_priority_is_preempted_first() -> None:
    bench = Bench(attached(blocks=9, block_size=4, slots=2, width=9, context=36))
    [low] = bench.admit(prompt_of(6), 24, priority=-1)
    bench.step()
    [high] = bench.admit(prompt_of(6, 1), 24)
    bench.settle()
    assert counts(bench)["preemptions"] > 0
    assert list(bench.clients["tokenizer0"].finish) == [high, low]


def test_a_preempted_row_with_penalties_tells_the_worker_what_it_has_seen() -> None:
    bench = Bench(attached(blocks=9, block_size=4, slots=4, width=9, context=36))
    penal = SamplingParams(frequency_penalty=0.5)
    keys = [bench.admit(prompt_of(6, i), 24, sampling=penal)[0] for i in range(4)]
    bench.settle()
    assert counts(bench)["preemptions"] > 0
    assert any(plan.admit is not None and plan.admit.seen_slot for plan in bench.worker.plans)
    for i, key in enumerate(keys):
        assert tokens(bench, key) == reference(key, prompt_of(6, i), 24, [], 36, 29)[0]


def test_blocks_of_a_row_whose_logits_are_no_numbers_are_not_found_again() -> None:
    bench = Bench(ROOMY)
    prompt = prompt_of(18)
    [bad] = bench.admit(prompt, 8, seeds=[POISON_SEED_MARK | 20])
    [good] = bench.admit(prompt, 20)
    bench.settle()
    assert bench.clients["tokenizer0"].finish[bad] == FINISH_ERROR
    assert tokens(bench, good) == reference(good, prompt, 20, [], 60, 29)[0]
    [after] = bench.admit(prompt, 4)
    bench.settle()
    assert after not in bench.clients["tokenizer0"].cached


def test_a_row_that_fails_in_its_first_block_leaves_nothing() -> None:
    bench = Bench(ROOMY)
    [bad] = bench.admit(prompt_of(2), 8, seeds=[POISON_SEED_MARK | 3])
    bench.settle()
    assert bench.clients["tokenizer0"].finish[bad] == FINISH_ERROR
    assert bench.engine.gauges()["blocks_free"] == 64


def test_what_runs_is_never_evicted() -> None:
    bench = Bench(attached(blocks=16, block_size=4, slots=3, width=12, context=48))
    prompt = prompt_of(16)
    [short] = bench.admit(prompt, 1)
    [long] = bench.admit([*prompt, 1], 28)
    flood = []
    for i in range(20):
        flood.append(bench.admit(prompt_of(10, 50 + i), 3)[0])
        for _ in range(4):
            bench.step()
            bench.engine.check()
    bench.settle()
    assert counts(bench)["evicted_blocks"] > 0
    assert short in bench.clients["tokenizer0"].finish
    assert tokens(bench, long) == reference(long, [*prompt, 1], 28, [], 48, 29)[0]


def test_the_same_output_twice_is_kept_once() -> None:
    bench = Bench(ROOMY)
    prompt = prompt_of(16)
    keys = [bench.admit(prompt, 20, seeds=[5])[0] for _ in range(3)]
    bench.settle()
    assert len({tuple(tokens(bench, key)) for key in keys}) == 1
    assert bench.engine.gauges()["blocks_cached"] == 35 // 4
    assert bench.engine.gauges()["blocks_free"] == 64 - 35 // 4


def test_leaves_used_again_and_again_do_not_pile_up() -> None:
    bench = Bench(ROOMY)
    for _ in range(300):
        bench.admit(prompt_of(9), 1)
        bench.settle()
    assert bench.engine.session is not None
    assert len(bench.engine.session.pool.tree._leaves) < 100


def test_when_every_decode_row_is_preempted_the_prompt_goes_on() -> None:
    bench = Bench(attached(blocks=8, block_size=1, slots=2, width=50, context=8), run_ahead=1, chunk_tokens=2)
    [low] = bench.admit(prompt_of(1), None)
    bench.step()
    [high] = bench.admit(prompt_of(5, 1), None, priority=1)
    bench.settle()
    assert bench.engine.idle
    assert list(bench.clients["tokenizer0"].finish) == [high, low]
    assert counts(bench)["preemptions"] > 0


def test_a_request_that_waits_for_blocks_is_looked_at_only_when_there_are_more(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(attached(blocks=10, block_size=4, slots=4, context=40))
    [running] = bench.admit(prompt_of(20), 18)
    bench.step()
    [large] = bench.admit(prompt_of(38, 1), 1)
    assert bench.engine.session is not None
    looks: list[int] = []
    match = bench.engine.session.pool.match

    def look(salt: str, tokens: I32) -> I32:
        looks.append(tokens.size)
        return match(salt, tokens)

    monkeypatch.setattr(bench.engine.session.pool, "match", look)
    bench.settle()
    assert list(bench.clients["tokenizer0"].finish) == [running, large]
    assert len(looks) <= 4
