"""Sequences sent again with what was delivered of them, after the scheduler or their tokenizer died; and what is late from a dead tokenizer."""

import msgspec
import pytest

from messages.admit import Admit
from messages.sampling import Constraints, SamplingParams
from messages.tokens import FINISH_LENGTH
from scheduler.errors import ContractError
from tests.support.null_answers import reference
from tests.support.scheduler_bench import Bench, attached, prompt_of
from transport.columns import pack_i32

PROMPT = prompt_of(6)


def resumed(keys: list[int], delivered: list[list[int]], **changes: object) -> Admit:
    values = {"tokenizer": "tokenizer0", "keys": keys, "seeds": keys, "prompt": pack_i32(PROMPT), "sampling": SamplingParams(), "end_ids": []}
    columns = [pack_i32(tokens) for tokens in delivered]
    return Admit(**(values | {"max_tokens": 9, "resumed": columns} | changes))  # type: ignore[arg-type]


def whole(key: int, max_tokens: int = 9) -> list[int]:
    return reference(key, PROMPT, max_tokens, [], 40, 29)[0]


@pytest.mark.parametrize("worker_dies", [False, True], ids=["worker lives", "worker dies too"])
def test_a_scheduler_that_dies_loses_nothing(worker_dies: bool) -> None:
    bench = Bench(attached(slots=2))
    keys = bench.admit(PROMPT, 9, n=2) + bench.admit(prompt_of(5, 1), 7, tokenizer="tokenizer1") + bench.admit(prompt_of(9, 2), None)
    for _ in range(7):
        bench.step()
    assert 0 < len(bench.clients["tokenizer0"].tokens[keys[0]]) < 9
    if worker_dies:
        bench.worker.restart()
    bench.scheduler_dies()
    bench.settle()
    for key in keys[:2]:
        assert bench.clients["tokenizer0"].tokens[key] == whole(key)
    assert bench.clients["tokenizer0"].finish.keys() | bench.clients["tokenizer1"].finish.keys() == set(keys)
    assert bench.engine.tally.counts["accepted"] == 4


def test_a_resumed_sequence_counts_what_it_had() -> None:
    """The index and the limit go on; cached tokens are said at a first token only, and this is none."""
    bench = Bench()
    had = whole(5)[:4]
    bench.clients["tokenizer0"].tokens[5] = list(had)
    bench.engine.receive(resumed([5], [had]), bench.now)
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert (client.tokens[5], client.finish[5], client.cached) == (whole(5), FINISH_LENGTH, {})
    assert bench.engine.tally.counts["generation_tokens"] == 5
    assert bench.engine.tally.counts["prompt_tokens"] == 6


def test_min_tokens_count_from_the_prompt() -> None:
    bench = Bench()
    had = whole(5)[:4]
    bench.clients["tokenizer0"].tokens[5] = list(had)
    bench.engine.receive(resumed([5], [had], end_ids=[28], constraints=Constraints(min_tokens=6)), bench.now)
    bench.settle()
    assert bench.worker.biased[5] == {(False, ((28, 0.0, 12),), ())}


def test_the_caps_of_the_line_do_not_hold_for_what_was_accepted_before() -> None:
    bench = Bench(attached(slots=1), max_queue=1)
    bench.admit(prompt_of(3), 4)
    bench.engine.receive(resumed([50, 51, 52], [[], [], []]), bench.now)
    bench.settle()
    assert bench.clients["tokenizer0"].refused == {}
    assert [bench.clients["tokenizer0"].tokens[key] for key in (50, 51, 52)] == [whole(50), whole(51), whole(52)]


def test_a_sequence_that_has_begun_goes_before_new_ones() -> None:
    bench = Bench(attached(slots=1))
    first = bench.admit(prompt_of(3), 4)[0]
    bench.plan()
    second = bench.admit(prompt_of(3), 4)[0]
    bench.clients["tokenizer0"].tokens[50] = whole(50)[:2]
    bench.engine.receive(resumed([50], [whole(50)[:2]]), bench.now)
    bench.settle()
    assert list(bench.clients["tokenizer0"].finish) == [first, 50, second]


@pytest.mark.parametrize(
    "message",
    [
        resumed([5], [[1], [2]]),
        resumed([5], [[1] * 9]),
        resumed([5], [[1]], prompt=b""),
        resumed([5], [], resumed=[b"abc"]),
    ],
    ids=["too many columns", "nothing left to generate", "no prompt", "column"],
)
def test_a_frame_that_breaks_the_contract_changes_nothing(message: Admit) -> None:
    bench = Bench()
    with pytest.raises(ContractError):
        bench.engine.receive(message, bench.now)
    assert bench.engine.idle


def test_what_cannot_go_on_is_refused_as_a_whole() -> None:
    """A token of another vocabulary, a sequence too long for the worker there is now."""
    bench = Bench()
    bench.engine.receive(resumed([5, 6], [[1], [29]]), bench.now)
    bench.engine.receive(resumed([7], [[1] * 34], max_tokens=None), bench.now)
    bench.flush()
    refused = bench.clients["tokenizer0"].refused
    assert [refused[key].code for key in (5, 6, 7)] == ["invalid_token", "invalid_token", "context_length_exceeded"]
    assert bench.engine.idle


def test_a_newer_tokenizer_ends_what_the_one_before_it_had() -> None:
    """However late the scheduler hears of the death: the first request of the new process says it."""
    bench = Bench()
    other = bench.admit(prompt_of(4), 6, tokenizer="tokenizer1")[0]
    bench.engine.receive(resumed([5], [[]], incarnation=1), bench.now)
    bench.step()
    bench.engine.receive(resumed([6], [[]], incarnation=2), bench.now)
    bench.engine.receive(resumed([7], [[]], incarnation=1), bench.now)  # from the dead, late
    bench.engine.tokenizer_lost("tokenizer0", 1)  # the cluster's state says it too, late
    bench.settle()
    assert bench.clients["tokenizer0"].finish.keys() == {6}
    assert other in bench.clients["tokenizer1"].finish
    assert bench.engine.tally.counts["cancelled"] == 1
    bench.engine.check()


def test_a_dead_tokenizer_is_not_heard_any_more() -> None:
    bench = Bench()
    bench.engine.receive(resumed([5], [[]], incarnation=3), bench.now)
    bench.engine.tokenizer_lost("tokenizer0", 3)
    bench.engine.receive(resumed([6], [[]], incarnation=3), bench.now)
    bench.settle()
    assert bench.clients["tokenizer0"].finish == {}
    assert bench.engine.tally.counts["cancelled"] == 1


def test_an_admit_of_before_reads_as_a_new_one() -> None:
    fields = msgspec.to_builtins(resumed([5], [[1]]))
    del fields["resumed"], fields["incarnation"]
    assert msgspec.convert(fields, Admit).resumed == []
