"""What a key of the scheduler's stateful machine was asked for, what is due to it, and whether it got that."""

import math
from collections import Counter
from dataclasses import dataclass

import pytest

from messages.explain import WAITING, Standing
from messages.sampling import Constraints, SamplingParams
from messages.tokens import FINISH_END_TOKEN, FINISH_ERROR, FINISH_LENGTH
from tests.support.null_worker import DEADLY, REFUSED
from tests.support.scheduler_bench import Bench


@dataclass(frozen=True)
class Wanted:
    """What a key was asked for, and what is due to it."""

    prompt: list[int]
    space: int
    tokenizer: str
    sampling: SamplingParams
    seed: int
    tokens: list[int]
    finish: int
    bias: tuple[object, ...] | None
    program: str = ""


def changes_of(prompt: list[int], ends: list[int], constraints: Constraints | None, banned: list[list[int]]) -> tuple[object, ...] | None:
    """What a worker must be told of a row's logits: whether it is closed, its entries, its words."""
    if constraints is None:
        return None
    held = ends if constraints.min_tokens else []
    never = [word[0] for word in banned if len(word) == 1]
    named = constraints.allowed or {*constraints.bias, *held, *never}
    entries = [
        (token, -math.inf if token in never else constraints.bias.get(token, 0.0), len(prompt) + constraints.min_tokens if token in held else 0)
        for token in sorted(named)
    ]
    return bool(constraints.allowed), tuple(entries), tuple(tuple(word) for word in banned if len(word) > 1)


def check_output(bench: Bench, context: int, key: int, want: Wanted) -> Counter[str]:
    """That a key got what was due to it, by the client's side and the worker's. Counts what has happened."""
    happened: Counter[str] = Counter()
    client = bench.clients[want.tokenizer]
    got, finish, problem = client.tokens.get(key, []), client.finish.get(key), client.problems.get(key)
    if key in client.gone:
        assert finish is None
    elif problem is not None and problem.code in ("step_failed", "poison_request", "shutting_down", "deadline_exceeded"):
        assert finish == FINISH_ERROR
        assert problem.code != "deadline_exceeded" or bench.deadlines[key] <= bench.now
    elif want.program.startswith(REFUSED):
        assert problem is not None
        assert (got, problem.code) == ([], "invalid_grammar" if len(want.prompt) < context else problem.code)
        happened["refused_grammars"] += 1
    elif len(want.prompt) >= context:  # it came while no worker was attached
        assert problem is not None
        assert (got, problem.code) == ([], "context_length_exceeded")
    else:
        assert (got, finish) == (want.tokens, want.finish), f"key {key}: {want}, {problem}"
        happened["unmatched"] += problem is not None and problem.code == "grammar_too_complex"
    if want.program.startswith(DEADLY):
        assert not got
        happened["deadly_grammars"] += problem is not None and problem.code == "poison_request"
    assert bench.worker.matched.get(want.seed, {want.program}) == {want.program}
    happened["matched"] += bool(want.program and got)
    assert 0 <= client.cached.get(key, 0) < len(want.prompt)
    assert bench.worker.biased.get(want.seed, {want.bias}) == {want.bias}
    if got:
        scores = [-token / 8 for token in want.prompt[1:]]
        assert client.scores.get(key, []) == (scores if want.sampling.prompt_logprobs >= 0 else [])
        happened["scored"] += bool(client.scores.get(key))
        happened["biased"] += want.bias is not None
    sampling = want.sampling
    columns = (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty, sampling.temperature, sampling.top_p)
    for prompt_len, logprobs, _, *floats in bench.worker.admitted.get(want.seed, set()):
        assert (prompt_len, logprobs, *floats[:5]) == (len(want.prompt), sampling.logprobs, *[pytest.approx(value) for value in columns])
    return happened


def check_standing(bench: Bench, standing: Standing, want: Wanted) -> None:
    """What is said of a live key fits what its client has."""
    known = len(bench.clients[want.tokenizer].tokens.get(standing.key, []))
    assert (standing.prompt_tokens, standing.generated_tokens) == (len(want.prompt), known)
    assert (standing.state == WAITING) == (standing.place is not None) == (standing.waits_for is not None)
    assert 0 <= standing.computed_tokens <= len(want.prompt) + known + bench.args.run_ahead
    assert standing.cached_tokens < len(want.prompt)


def check_ends(bench: Bench, counts: Counter[str], over: Counter[str]) -> None:
    """At rest: counters are what the clients have seen, but for `over`, what they ended themselves; and nothing is held."""
    ends = Counter(finish for client in bench.clients.values() for finish in client.finish.values())
    assert counts["finished_length"] == ends[FINISH_LENGTH]
    assert counts["finished_stop"] == ends[FINISH_END_TOKEN] + over["finished_stop"]
    assert counts["errors"] == ends[FINISH_ERROR]
    assert counts["cancelled"] == over["cancelled"]
    assert counts["generation_tokens"] == sum(len(tokens) for client in bench.clients.values() for tokens in client.tokens.values())
    assert counts["prefix_hits"] <= counts["prefix_queries"]
    gauges = bench.engine.gauges()
    used = ("running", "waiting", "waiting_tokens", "slots_used", "blocks_used", "blocks_retiring")
    assert {name: gauges[name] for name in used} == dict.fromkeys(used, 0)
    assert gauges["blocks_free"] + gauges["blocks_cached"] == gauges["blocks"]
