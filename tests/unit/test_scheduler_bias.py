"""Constraints as columns of a plan, and logprobs of prompts: what is sent, when, and that nothing is missing after whatever happens."""

import math

import msgspec
import pytest

from messages.admit import Admit
from messages.result import ScoreColumns, StepResult
from messages.sampling import Constraints, Pooling, SamplingParams
from messages.tokens import FINISH_ERROR
from scheduler.bias import Bias, bias_of
from scheduler.errors import ContractError
from tests.support.scheduler_bench import Bench, attached, prompt_of
from transport.columns import pack_i32, view_f32, view_i32

VOCAB = 29


def made(constraints: Constraints | None, banned: list[list[int]] | None = None, ends: list[int] | None = None) -> Bias | None:
    admit = Admit(
        tokenizer="tokenizer0", keys=[1], seeds=[1], prompt=b"", sampling=SamplingParams(), end_ids=ends or [], constraints=constraints,
        banned=banned or [],
    )  # fmt: skip
    return bias_of(admit, 10)


def entries(bias: Bias | None) -> dict[int, tuple[float, int]]:
    assert bias is not None
    columns = view_i32(bias.token, bias.count), view_f32(bias.value, bias.count), view_i32(bias.since, bias.count)
    return {token: (value, since) for token, value, since in zip(*(column.tolist() for column in columns), strict=True)}


@pytest.mark.parametrize("constraints", [None, Constraints(), Constraints(min_tokens=3)])
def test_constraints_that_change_nothing(constraints: Constraints | None) -> None:
    assert made(constraints) is None


def test_each_constraint_as_entries() -> None:
    assert entries(made(Constraints(bias={5: 1.5, 3: -2.0}), ends=[7])) == {3: (-2.0, 0), 5: (1.5, 0)}
    assert entries(made(Constraints(min_tokens=4), ends=[7, 2])) == {2: (0.0, 14), 7: (0.0, 14)}
    assert entries(made(Constraints(bias={7: 1.0}, min_tokens=4), [[5], [6]], [7])) == {5: (-math.inf, 0), 6: (-math.inf, 0), 7: (1.0, 14)}
    assert entries(made(Constraints(min_tokens=2**31 - 1), ends=[7])) == {7: (0.0, 2**31 - 1)}


def test_only_allowed_tokens_are_named() -> None:
    bias = made(Constraints(bias={5: 1.0, 6: 2.0}, allowed=[8, 5, 7, 7], min_tokens=1), [[6], [8], [1, 2]], [7, 9])
    assert entries(bias) == {5: (1.0, 0), 7: (0.0, 11), 8: (-math.inf, 0)}
    assert bias is not None
    assert (bias.closed, bias.words, bias.largest) == (True, [[1, 2]], 8)


def test_words_alone_are_a_bias() -> None:
    bias = made(Constraints(bad_words=["x"]), [[1, 20], [2, 3, 4]])
    assert bias is not None
    assert (bias.count, bias.words, bias.largest) == (0, [[1, 20], [2, 3, 4]], 20)


def test_a_row_keeps_its_bias_whatever_happens() -> None:
    bench = Bench(attached(blocks=10, slots=3))
    constraints = Constraints(bias={3: 1.0}, min_tokens=2)
    keys = [
        bench.admit(prompt_of(9, number), 20, end_ids=[28] if number else [], constraints=constraints, banned=[[4, 5, number]])[0]
        for number in range(3)
    ]
    plain = bench.admit(prompt_of(5), 20)[0]
    for _ in range(12):
        bench.step()
        bench.engine.check()
    bench.worker.restart()
    bench.settle()
    assert bench.engine.tally.counts["preemptions"] > 0
    for number, key in enumerate(keys):
        end = ((28, 0.0, 11),) if number else ()
        assert bench.worker.biased[key] == {(False, ((3, 1.0, 0), *end), ((4, 5, number),))}
    assert plain not in bench.worker.biased
    assert set(bench.clients["tokenizer0"].finish) == {*keys, plain}


def test_tokens_outside_the_vocabulary_are_refused_now_or_when_a_worker_comes() -> None:
    for start in (True, False):
        bench = Bench(start=start)
        key = bench.admit([1, 2], constraints=Constraints(bias={VOCAB: 1.0}))[0]
        bench.settle()
        client = bench.clients["tokenizer0"]
        problem = client.refused[key] if start else client.problems[key]
        assert (problem.status, problem.code) == (400, "invalid_token")
        assert start or client.finish[key] == FINISH_ERROR


def scored(prompt: list[int]) -> list[float]:
    return [-token / 8 for token in prompt[1:]]


@pytest.mark.parametrize("prefix_cache", [True, False])
@pytest.mark.parametrize("top", [0, 2])
def test_every_prompt_position_is_scored_once(prefix_cache: bool, top: int) -> None:
    """In chunks, with a cached prefix and choices of one prompt, and of a prompt of one token: there is nothing to score."""
    bench = Bench(attached(blocks=40), prefix_cache=prefix_cache)
    sampling = SamplingParams(prompt_logprobs=top)
    prompt = prompt_of(30)
    bench.admit(prompt, 3)
    bench.settle()
    keys = bench.admit(prompt, 3, n=2, sampling=sampling) + bench.admit(prompt[:3], 3, n=2, sampling=sampling)
    single = bench.admit([5], 3, sampling=sampling)[0]
    bench.settle()
    client = bench.clients["tokenizer0"]
    for key, own in zip(keys, [prompt, prompt, prompt[:3], prompt[:3]], strict=True):
        assert client.scores[key] == scored(own)
        assert client.score_tops[key] == [token + 1 + number for token in own[1:] for number in range(top)]
        assert key not in client.cached
    assert single not in client.scores
    assert len(client.finish) == 6


def test_scores_survive_preemption_restarts_and_aborts() -> None:
    bench = Bench(attached(blocks=12, slots=4), run_ahead=3)
    sampling = SamplingParams(prompt_logprobs=1)
    prompts = {bench.admit(prompt_of(20, number), 15, sampling=sampling, priority=number % 2)[0]: prompt_of(20, number) for number in range(6)}
    for turn in range(60):
        bench.plan()
        if turn % 3:
            bench.deliver()
        bench.engine.check()
        if turn in (7, 31):
            bench.worker.restart()
        if turn == 12:
            gone = next(iter(prompts))
            bench.abort([gone])
            bench.clients["tokenizer0"].gone.add(gone)
            del prompts[gone]
    bench.settle()
    assert bench.engine.tally.counts["preemptions"] > 0
    client = bench.clients["tokenizer0"]
    for key, prompt in prompts.items():
        assert client.scores[key] == scored(prompt)
        assert len(client.tokens[key]) == 15


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_hidden_states_of_every_position_once(pooling: Pooling) -> None:
    """Beside rows that want logprobs, with preemptions and a worker that comes back; the null worker sums positions."""
    bench = Bench(attached(blocks=11, slots=4))
    bench.admit(prompt_of(20), 3)
    bench.settle()
    lengths = {bench.admit(prompt_of(length), 6, pooling=pooling)[0]: length for length in (1, 20, 25, 8)}
    other = bench.admit(prompt_of(20), 6, sampling=SamplingParams(prompt_logprobs=1))[0]
    for turn in range(40):
        bench.step()
        bench.engine.check()
        if turn == 5:
            bench.worker.restart()
    bench.settle()
    client = bench.clients["tokenizer0"]
    assert client.scores[other] == scored(prompt_of(20))
    for key, length in lengths.items():
        first = length - 1 if pooling == "last" else 0
        parts = client.states[key]
        assert [start for start, _, _ in parts] == [first, *(start + count for start, count, _ in parts[:-1])]
        assert sum(count for _, count, _ in parts) == length - first
        assert sum(states[0] for _, _, states in parts) == sum(range(first, length))
        assert key not in client.cached


@pytest.mark.parametrize("states", [b"", b"123", pack_i32([1, 2, 3])])
def test_hidden_states_that_break_the_contract(states: bytes) -> None:
    bench = Bench()
    keys = bench.admit(prompt_of(4), 2, pooling="mean") + bench.admit(prompt_of(3), 2, pooling="last")
    bench.plan()
    message = bench.worker.deliver()
    assert isinstance(message, StepResult)
    assert message.scores is not None
    wrong = msgspec.structs.replace(message.scores, states=states)
    with pytest.raises(ContractError):
        bench.engine.receive(msgspec.structs.replace(message, scores=wrong), bench.now)
    bench.flush()
    bench.settle()
    assert [len(bench.clients["tokenizer0"].tokens[key]) for key in keys] == [2, 2]


@pytest.mark.parametrize("fault", ["missing", "uncalled for", "slot", "chosen", "ranks", "top_ids", "top_values"])
def test_scores_that_break_the_contract(fault: str) -> None:
    """The session is given up and all is computed again."""
    bench = Bench()
    key = bench.admit(prompt_of(8), 4, sampling=SamplingParams(prompt_logprobs=-1 if fault == "uncalled for" else 1))[0]
    bench.plan()
    message = bench.worker.deliver()
    assert isinstance(message, StepResult)
    columns = message.scores or ScoreColumns(slot=b"", start=b"", count=b"", top=b"", chosen=b"", ranks=b"", top_ids=b"", top_values=b"")
    wrong = None if fault == "missing" else columns if fault == "uncalled for" else msgspec.structs.replace(columns, **{fault: pack_i32([77, 7])})
    with pytest.raises(ContractError):
        bench.engine.receive(msgspec.structs.replace(message, scores=wrong), bench.now)
    bench.flush()
    bench.settle()
    assert len(bench.clients["tokenizer0"].tokens[key]) == 4
