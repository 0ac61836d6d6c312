"""Preemption has no seam: a pool that holds one long row gives the same answers as one that holds them all, and only takes longer.

The small pools are also a GPU's, whose answers in float32 are then compared with the CPU's: penalties, seeds, several choices, cached prefixes.
"""

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.cluster import Cluster, running_cluster
from tests.support.completions import Answer, Choice, complete, open_session, stream
from tests.support.devices import CLUSTERS, on_gpu
from tests.support.figures import idle_figures, scheduler_state
from tests.support.histo import SYMBOLS, ids_of

CONTEXT = 192
BIG, TINY = 8192, CONTEXT
ROUNDS = 6
TOKENS = 64
LOGPROB_TOLERANCE = 1e-4
COMMON = ["--max-context", str(CONTEXT), "--max-slots", "8", "--threads", "1", "--log-level", "debug"]

HOT: dict[str, Any] = {"temperature": 8.0, "top_k": 4}
"""Any of the few likeliest tokens may come: `histo` would else repeat its last token for ever, and no penalty would show."""
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": HOT | {"seed": 1},
    "presence": HOT | {"presence_penalty": 2.0, "seed": 2},
    "frequency": {"frequency_penalty": 0.4},
    "repetition": {"repetition_penalty": 1.5},
    "everything": HOT | {"presence_penalty": 0.7, "frequency_penalty": 0.15, "repetition_penalty": 1.1, "top_p": 0.95, "min_p": 0.02, "seed": 3},
    "choices": HOT | {"n": 3, "frequency_penalty": 0.2, "seed": 4},
    "urgent": HOT | {"priority": 1, "presence_penalty": 0.5, "seed": 5},
}
"""Penalties are so weak that what occurs in a prompt of `histo` stays likelier than what does not: the latter has ties, broken by rounding."""
Answers = dict[str, Answer]


@dataclasses.dataclass(frozen=True)
class Served:
    """Clusters of one model: `tiny` by whether its prefix cache is on. `answers` are those of the big pool, each request alone."""

    big: Cluster
    tiny: dict[str, Cluster]
    prompts: dict[str, list[int]]
    answers: Answers


@pytest.fixture(scope="module", params=["cpu", pytest.param("cuda", marks=on_gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where the small pools are."""
    name: str = request.param
    return name


@pytest.fixture(scope="module", params=[pytest.param("histo-byte", marks=pytest.mark.slow), "rand-byte"])
def served(models: Path, request: pytest.FixtureRequest, device: str) -> Iterator[Served]:
    if (request.param, device) == ("histo-byte", "cuda"):
        pytest.skip("symbols that came equally often are equally likely but for rounding, and no two devices round alike")
    with ExitStack() as stack:

        def start(pool: int, cache: str, device: str) -> Cluster:
            options = [*CLUSTERS[device], "--kv-tokens", str(pool), "--prefix-cache", cache, *COMMON]
            return stack.enter_context(running_cluster(models / request.param, *options))

        big, tiny = start(BIG, "on", "cpu"), {cache: start(TINY, cache, device) for cache in ("on", "off")}
        prompts = {name: prompt(number) for number, name in enumerate(REQUESTS)}
        yield Served(big, tiny, prompts, asyncio.run(one_by_one(big, prompts)))


def prompt(number: int) -> list[int]:
    """Prompts of 12 to 40 tokens; `histo` repeats what a prompt is made of."""
    random = np.random.default_rng(number)
    return [int(token) for token in random.choice(random.integers(0, SYMBOLS, size=6), size=12 + 4 * number)]


async def one_by_one(cluster: Cluster, prompts: dict[str, list[int]]) -> Answers:
    async with open_session(cluster) as session:
        return {name: await complete(session, cluster, prompts[name], max_tokens=TOKENS, **options) for name, options in REQUESTS.items()}


async def together(cluster: Cluster, requests: dict[str, dict[str, Any]], prompts: dict[str, list[int]], streamed: bool) -> Answers:
    """All requests at once."""
    ask = stream if streamed else complete
    async with open_session(cluster) as session:
        jobs = [ask(session, cluster, prompts[name], **{"max_tokens": TOKENS} | options) for name, options in requests.items()]
        return dict(zip(requests, await asyncio.gather(*jobs), strict=True))


def same(left: Choice, right: Choice) -> None:
    assert (left.text, left.tokens) == (right.text, right.tokens)
    assert (left.finish, left.stop_reason) == (right.finish, right.stop_reason)
    assert left.logprobs == pytest.approx(right.logprobs, abs=LOGPROB_TOLERANCE)
    for ours, theirs in zip(left.top, right.top, strict=True):
        assert sorted(ours.values()) == pytest.approx(sorted(theirs.values()), abs=LOGPROB_TOLERANCE)


def compare(found: Answers, wanted: Answers) -> None:
    assert found.keys() == wanted.keys()
    for name, answer in found.items():
        assert (answer.prompt_tokens, answer.completion_tokens) == (wanted[name].prompt_tokens, wanted[name].completion_tokens), name
        assert answer.cached < answer.prompt_tokens, name
        for ours, theirs in zip(answer.choices, wanted[name].choices, strict=True):
            same(ours, theirs)


async def compare_preempted(served: Served, cluster: Cluster, requests: dict[str, dict[str, Any]], streamed: bool) -> Answers:
    """Run `requests` on a cluster with a tiny pool. Those that are the same as in REQUESTS must give the same answers, and some were preempted.

    Admission learns how long answers get, and then preempts less often: a round without a preemption is followed by another.
    """
    before = (await scheduler_state(cluster)).counters["preemptions"]
    equal = [name for name in requests if requests[name] == REQUESTS[name]]
    for _ in range(ROUNDS):
        found = await together(cluster, requests, served.prompts, streamed)
        compare({name: found[name] for name in equal}, {name: served.answers[name] for name in equal})
        if (await idle_figures(cluster)).counters["preemptions"] > before:
            return found
    pytest.fail("nothing was preempted")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cache", ["on", "off"])
async def test_the_same_streams_from_a_tiny_pool(served: Served, cache: str) -> None:
    await compare_preempted(served, served.tiny[cache], REQUESTS, streamed=True)


async def test_the_same_answers_in_company(served: Served) -> None:
    compare(await together(served.big, REQUESTS, served.prompts, streamed=True), served.answers)
    assert (await idle_figures(served.big)).counters["preemptions"] == 0


async def test_a_prompt_that_is_cached(served: Served) -> None:
    """Asked alone and again: all but its last tokens come from the cache, blocks are copied, and the answer is the same."""
    async with open_session(served.tiny["on"]) as session:
        prompt = served.prompts["urgent"][:32]
        first, again = [await complete(session, served.tiny["on"], prompt, max_tokens=40) for _ in range(2)]
    assert again.cached >= 16
    same(again.choices[0], first.choices[0])


@pytest.mark.parametrize("cache", ["on", "off"])
async def test_stops_in_a_tiny_pool(served: Served, cache: str) -> None:
    """Strings are found by the tokenizer, tokens by the scheduler, both while later plans are in flight: nothing of those reaches the client."""
    strings = {name: stop_in(served.answers[name].choices[0].text) for name in ("seeded", "presence")}
    tokens = {name: last_new(served.answers[name].choices[0].tokens) for name in ("frequency", "everything", "urgent")}
    requests = REQUESTS | {name: REQUESTS[name] | {"stop": [stop]} for name, stop in strings.items()}
    requests |= {name: REQUESTS[name] | {"stop_token_ids": ids_of(stop)} for name, stop in tokens.items()}
    found = await compare_preempted(served, served.tiny[cache], requests, streamed=False)
    for name, stop in strings.items():
        whole, ended = served.answers[name].choices[0], found[name].choices[0]
        assert (ended.text, ended.finish, ended.stop_reason) == (whole.text[: whole.text.index(stop)], "stop", stop)
    for name, stop in tokens.items():
        whole, ended = served.answers[name].choices[0], found[name].choices[0]
        assert ended.tokens == whole.tokens[: whole.tokens.index(stop) + 1]
        assert (ended.finish, ended.stop_reason, found[name].completion_tokens) == ("stop", ids_of(stop)[0], len(ended.tokens))


def stop_in(text: str) -> str:
    """Two printable characters that come late in `text` and not before."""
    for start in range(len(text) // 2, len(text) - 1):
        stop = text[start : start + 2]
        if stop.isascii() and stop.isprintable() and text.index(stop) > len(text) // 3:
            return stop
    raise AssertionError(f"no stop string in {text!r}")


def last_new(tokens: list[str]) -> str:
    """The printable character among `tokens` that occurs first as late as any does."""
    return max((token for token in tokens if len(token) == 1 and "!" <= token <= "~"), key=tokens.index)
