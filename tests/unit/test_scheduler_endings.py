"""How sequences end: end token, limit, stop string, abort, non-finite logits, and what run-ahead must not give."""

import pytest

from messages.sampling import SamplingParams
from messages.tokens import FINISH_END_TOKEN, FINISH_ERROR, FINISH_LENGTH
from tests.support.null_answers import POISON_SEED_MARK, reference, sample
from tests.support.scheduler_bench import Bench, attached, prompt_of

VOCAB = 29


@pytest.fixture(params=[1, 2, 3], ids=lambda ahead: f"ahead{ahead}")
def bench(request: pytest.FixtureRequest) -> Bench:
    return Bench(run_ahead=request.param)


def nth_token(seed: int, prompt: list[int], n: int) -> int:
    return reference(seed, prompt, n, [], 40, VOCAB)[0][-1]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_an_end_token_ends_the_row_and_gives_nothing_more(bench: Bench, n: int) -> None:
    prompt = prompt_of(3)
    end = nth_token(1, prompt, n)
    [key] = bench.admit(prompt, 20, end_ids=[end])
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert client.tokens[key][-1] == end
    assert (client.tokens[key], client.finish[key]) == reference(key, prompt, 20, [end], 40, VOCAB)
    assert client.finish[key] == FINISH_END_TOKEN
    assert bench.engine.gauges()["blocks_used"] == 0


def test_the_end_token_at_the_limit_is_a_stop(bench: Bench) -> None:
    prompt = prompt_of(5)
    end = nth_token(1, prompt, 3)
    [key] = bench.admit(prompt, 3, end_ids=[end])
    bench.settle()
    assert bench.clients["tokenizer0"].finish[key] == FINISH_END_TOKEN


def test_many_end_tokens(bench: Bench) -> None:
    ends = [token for token in range(VOCAB) if token % 3]
    keys = [bench.admit(prompt_of(4, i), 20, end_ids=ids)[0] for i, ids in enumerate([ends, [], ends[:1], ends * 50])]
    bench.settle()
    for i, (key, ids) in enumerate(zip(keys, [ends, [], ends[:1], ends], strict=True)):
        assert (bench.clients["tokenizer0"].tokens[key], bench.clients["tokenizer0"].finish[key]) == reference(
            key, prompt_of(4, i), 20, ids, 40, VOCAB
        )


def test_finish_on_a_block_border(bench: Bench) -> None:
    keys = [bench.admit(prompt_of(length), max_tokens)[0] for length, max_tokens in [(4, 4), (3, 1), (4, 1), (8, 1), (3, 2), (7, 6)]]
    bench.settle()
    assert [len(bench.clients["tokenizer0"].tokens[key]) for key in keys] == [4, 1, 1, 1, 2, 6]


def test_two_end_in_one_step(bench: Bench) -> None:
    first = bench.admit(prompt_of(2), 4)
    second = bench.admit(prompt_of(2, 1), 4, tokenizer="tokenizer1")
    third = bench.admit(prompt_of(2, 2), 9)
    bench.settle()
    assert bench.clients["tokenizer0"].finish == {first[0]: FINISH_LENGTH, third[0]: FINISH_LENGTH}
    assert bench.clients["tokenizer1"].finish == {second[0]: FINISH_LENGTH}


@pytest.mark.parametrize("steps", range(12))
@pytest.mark.parametrize("finished", [True, False])
def test_abort_at_every_moment(bench: Bench, steps: int, finished: bool) -> None:
    """Between plan and reply, in the queue, in the middle of a chunked prefill: nothing comes after, nothing leaks."""
    [other] = bench.admit(prompt_of(3), 14)
    [key] = bench.admit(prompt_of(25, 1), 5)
    for _ in range(steps):
        bench.step()
    bench.plan()
    known = list(bench.clients["tokenizer0"].tokens.get(key, []))
    over = key in bench.clients["tokenizer0"].finish
    bench.abort([key, 999], finished)
    bench.abort([key])
    bench.engine.check()
    [again] = bench.admit(prompt_of(20, 2), 4)
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert client.tokens.get(key, []) == known
    for kept, prompt, limit in ((other, prompt_of(3), 14), (again, prompt_of(20, 2), 4)):
        assert (client.tokens[kept], client.finish[kept]) == reference(kept, prompt, limit, [], 40, VOCAB)
    counts = bench.engine.tally.counts
    assert counts["accepted"] == 3
    assert counts["cancelled"] == (0 if finished or over else 1)
    assert counts["finished_stop"] == (1 if finished and not over else 0)
    assert bench.engine.gauges()["slots_used"] == 0


@pytest.mark.parametrize("length", [3, 4, 7])
def test_non_finite_logits_fail_that_row_alone(bench: Bench, length: int) -> None:
    prompt = prompt_of(3)
    bad = POISON_SEED_MARK | length
    keys = bench.admit(prompt, 8, n=3, seeds=[11, bad, 12], sampling=SamplingParams(logprobs=1))
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert client.finish == {keys[0]: FINISH_LENGTH, keys[1]: FINISH_ERROR, keys[2]: FINISH_LENGTH}
    assert (client.problems[keys[1]].status, client.problems[keys[1]].code) == (500, "non_finite_logits")
    assert client.tokens[keys[1]] == reference(bad, prompt, 8, [], 40, VOCAB)[0]
    assert len(client.tokens[keys[1]]) == length - 3
    assert client.tokens[keys[0]] == reference(11, prompt, 8, [], 40, VOCAB)[0]
    assert bench.engine.tally.counts["errors"] == 1
    assert bench.engine.tally.counts["generation_tokens"] == 16 + length - 3


def test_logprobs_go_to_the_rows_that_asked(bench: Bench) -> None:
    asked = [bench.admit(prompt_of(2, i), 3 + i, tokenizer=f"tokenizer{i % 2}", sampling=SamplingParams(logprobs=i)) for i in range(4)]
    silent = bench.admit(prompt_of(2, 9), 5)
    bench.settle()
    for i, [key] in enumerate(asked):
        client = bench.clients[f"tokenizer{i % 2}"]
        assert client.chosen[key] == [-token / 8 for token in client.tokens[key]]
        assert client.top_ids[key] == [[token + 1 + place for place in range(i)] for token in client.tokens[key]]
    assert silent[0] not in bench.clients["tokenizer0"].chosen


def test_tokens_are_one_message_per_step_and_tokenizer() -> None:
    bench = Bench(attached(blocks=64, slots=8, step_tokens=64), chunk_tokens=64)
    for i in range(8):
        bench.admit(prompt_of(2, i), 10, tokenizer=f"tokenizer{i % 2}")
    bench.settle()
    assert [client.messages for client in bench.clients.values()] == [10, 10]


def test_choices_share_a_prompt_and_differ_by_seed(bench: Bench) -> None:
    prompt = prompt_of(6)
    keys = bench.admit(prompt, 5, n=6)
    bench.settle()
    assert [bench.clients["tokenizer0"].tokens[key] for key in keys] == [reference(key, prompt, 5, [], 40, VOCAB)[0] for key in keys]
    assert bench.engine.tally.counts["prompt_tokens"] == 6
    assert bench.engine.tally.counts["accepted"] == 6


def test_the_reference_is_not_trivial() -> None:
    assert len({sample(1, prompt_of(5, i), VOCAB) for i in range(40)}) > 10
