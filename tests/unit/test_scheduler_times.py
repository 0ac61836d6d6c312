"""How long a sequence waited and how long its prompt took, told once with its first token; and how large the steps were."""

import pytest

from scheduler.step_sizes import BOUNDS, StepSizes
from tests.support.null_answers import POISON_SEED_MARK
from tests.support.scheduler_bench import Bench, attached, prompt_of


def test_times_run_from_arrival_to_the_slot_to_the_first_token() -> None:
    bench = Bench(attached(slots=1), run_ahead=1)
    [first] = bench.admit(prompt_of(20), 3)  # 3 chunks of 8 tokens, then 2 steps; a step takes 0.01 s
    [second] = bench.admit(prompt_of(3, 1), 2)
    bench.settle()
    began = bench.clients["tokenizer0"].began
    assert began[first] == pytest.approx((0.0, 0.03), abs=1e-6)
    assert began[second] == pytest.approx((0.05, 0.01), abs=1e-6)


def test_told_once_for_each_sequence_whatever_happens_to_it() -> None:
    """Preempted rows, choices of one prompt, a row that fails at its first token, two tokenizers."""
    bench = Bench(attached(blocks=9, block_size=4, slots=4, width=9, context=36))
    keys = [key for number in range(3) for key in bench.admit(prompt_of(6, number), 24, n=2)]
    keys += bench.admit(prompt_of(3), 4, tokenizer="tokenizer1")
    keys += bench.admit(prompt_of(6), 4, seeds=[POISON_SEED_MARK | 6])
    bench.settle()
    assert bench.engine.tally.counts["preemptions"] > 0
    told = [key for client in bench.clients.values() for key in client.began]
    assert sorted(told) == sorted(keys)
    assert all(queued >= 0 and prefilled > 0 for client in bench.clients.values() for queued, prefilled in client.began.values())


def test_step_sizes_are_cumulative_and_their_sum_is_what_was_computed() -> None:
    bench = Bench(attached(slots=1), run_ahead=1)
    bench.admit(prompt_of(9), 3)  # steps of 8, 1, 1 and 1 tokens
    bench.settle()
    counters = bench.engine.step_sizes.counters()
    assert (counters["step_tokens"], counters["step_tokens_le_1"], counters["step_tokens_le_8"]) == (11, 3, 4)
    assert counters[f"step_tokens_le_{BOUNDS[-1]}"] == bench.engine.tally.counts["steps"] == 4


def test_a_step_above_the_largest_bound_counts_in_the_sum_alone() -> None:
    sizes = StepSizes()
    sizes.add(BOUNDS[-1])
    sizes.add(BOUNDS[-1] + 1)
    counters = sizes.counters()
    assert (counters[f"step_tokens_le_{BOUNDS[-1]}"], counters["step_tokens"]) == (1, 2 * BOUNDS[-1] + 1)
