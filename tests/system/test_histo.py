"""Logprobs of the `histo` fixture through the whole cluster equal the closed form: any stale, missing or foreign KV entry would show.

Nine clusters cover every pair of block size, chunk size, prefix cache and pool; in each one all kinds of requests run in one mix.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.fixtures.make_fixtures import forward
from tests.support.cluster import Cluster, running_cluster
from tests.support.completions import Answer, complete, events, open_session, stream
from tests.support.figures import Figures, idle_figures
from tests.support.histo import SYMBOLS, check, log_distribution

CONTEXT = 320
SLOTS = 6
BIG, TINY = 4096, CONTEXT
LENGTHS = [1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 97, 127, 128, 129, 200]


@dataclass(frozen=True)
class Setting:
    """One cluster: sizes in tokens. A tiny pool holds one row of the whole context, so rows that grow together must be preempted."""

    block: int
    chunk: int
    cache: bool
    pool: int
    ahead: int

    def __str__(self) -> str:
        return f"block{self.block}-chunk{self.chunk}-{'cache' if self.cache else 'nocache'}-{'big' if self.pool == BIG else 'tiny'}-ahead{self.ahead}"

    @property
    def options(self) -> list[str]:
        numbers = {"--block-size": self.block, "--chunk-tokens": self.chunk, "--kv-tokens": self.pool, "--run-ahead": self.ahead}
        fixed = ["--max-slots", str(SLOTS), "--max-context", str(CONTEXT), "--max-step-tokens", "2304", "--threads", "1", "--log-level", "debug"]
        return [*(str(part) for pair in numbers.items() for part in pair), "--prefix-cache", "on" if self.cache else "off", *fixed]


SETTINGS = [
    Setting(16, 16, cache=True, pool=TINY, ahead=2),
    Setting(16, 64, cache=False, pool=BIG, ahead=1),
    Setting(16, 2048, cache=True, pool=TINY, ahead=3),
    Setting(32, 16, cache=False, pool=TINY, ahead=3),
    Setting(32, 64, cache=True, pool=TINY, ahead=1),
    Setting(32, 2048, cache=True, pool=BIG, ahead=2),
    Setting(64, 16, cache=True, pool=BIG, ahead=1),
    Setting(64, 64, cache=True, pool=TINY, ahead=3),
    Setting(64, 2048, cache=False, pool=TINY, ahead=2),
]


QUICK = {0, 1, 5, 7}  # every size, both caches and pools, every depth; the slow tests have every pair of them
CASES = [pytest.param(setting, marks=[] if number in QUICK else [pytest.mark.slow], id=str(setting)) for number, setting in enumerate(SETTINGS)]


@pytest.fixture(scope="module", params=CASES)
def served(models: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, Setting]]:
    with running_cluster(models / "histo-byte", *request.param.options) as running:
        yield running, request.param


def test_the_closed_form_is_the_fixture(models: Path) -> None:
    weights = load_file(models / "histo-byte" / "model.safetensors")
    random = np.random.default_rng(1)
    for length in (1, 2, 17, 100):
        ids = random.integers(0, SYMBOLS, size=length)
        logits = forward(weights, ids)[-1].astype(np.float64)
        logits -= logits.max()
        assert log_distribution(Counter(ids.tolist()), int(ids[-1])) == pytest.approx(logits - np.log(np.exp(logits).sum()), abs=1e-4)


class Mix:
    """Requests whose prompts are new each time and made of few symbols, neighbours' symbols being others: a foreign entry lifts a logit that is 0."""

    def __init__(self, session: aiohttp.ClientSession, cluster: Cluster, seed: int) -> None:
        self.session = session
        self.cluster = cluster
        self.random = np.random.default_rng(seed)
        self._made = 0

    def prompt(self, length: int) -> list[int]:
        self._made += 1
        first = self._made * 4 % (SYMBOLS - 4)
        return [int(first + offset) for offset in self.random.integers(0, 4, size=length)]

    async def whole(self, prompt: list[int], greedy: bool = True, **options: Any) -> Answer:
        return self._checked(await complete(self.session, self.cluster, prompt, **options), prompt, greedy, **options)

    async def streamed(self, prompt: list[int], greedy: bool = True, **options: Any) -> Answer:
        return self._checked(await stream(self.session, self.cluster, prompt, **options), prompt, greedy, **options)

    async def seeded(self, prompt: list[int], seed: int, **options: Any) -> Answer:
        """Hot enough that any of the prompt's symbols may come, and nothing else (the streams of n choices differ)."""
        return await self.streamed(prompt, greedy=False, temperature=8.0, top_k=len(set(prompt)), seed=seed, **options)

    async def abandoned(self, prompt: list[int], chunks: int) -> None:
        """A client that goes away in the middle of its stream."""
        async with contextlib.aclosing(events(self.session, self.cluster, prompt, max_tokens=CONTEXT)) as running:
            for _ in range(chunks):
                await anext(running)

    def _checked(self, answer: Answer, prompt: list[int], greedy: bool, max_tokens: int, n: int = 1, **_: Any) -> Answer:
        check(answer, prompt, greedy=greedy)
        assert [len(choice.tokens) for choice in answer.choices] == [max_tokens] * n
        assert (answer.prompt_tokens, answer.completion_tokens) == (len(prompt), max_tokens * n)
        assert answer.cached < len(prompt)
        return answer


def tokens_of(answer: Answer) -> list[list[str]]:
    return [choice.tokens for choice in answer.choices]


async def everything_at_once(mix: Mix) -> None:
    """All kinds of requests in one mix; each checks itself, and equal ones are compared."""
    twice, four, seeded_four = mix.prompt(100), mix.prompt(40), mix.prompt(70)
    jobs = [mix.streamed(mix.prompt(length), max_tokens=100) for length in range(8, 14)]
    jobs += [mix.whole(mix.prompt(length), max_tokens=4) for length in LENGTHS]
    jobs += [mix.whole(twice, max_tokens=8) for _ in range(3)]
    aborts = [mix.abandoned(mix.prompt(30), chunks) for chunks in (1, 5, 30)]
    fours = [mix.whole(four, n=4, max_tokens=20), mix.streamed(four, n=4, max_tokens=20)]
    seeds = [mix.seeded(seeded_four, seed, n=4, max_tokens=20) for seed in (5, 60, 5)]
    _, _, greedy, hot = await asyncio.gather(asyncio.gather(*jobs), asyncio.gather(*aborts), asyncio.gather(*fours), asyncio.gather(*seeds))
    assert [tokens_of(answer) for answer in greedy] == [[greedy[0].choices[0].tokens] * 4] * 2
    first, other, again = (tokens_of(answer) for answer in hot)
    assert first == again
    assert len({tuple(tokens) for tokens in first + other}) == 8


async def streams_with_churn(mix: Mix) -> None:
    """Three long streams while short requests come and go one after the other."""
    streams = [asyncio.create_task(mix.seeded(mix.prompt(20), seed, max_tokens=60)) for seed in range(3)]
    while not all(task.done() for task in streams):
        length = int(mix.random.integers(1, 60))
        await asyncio.gather(mix.whole(mix.prompt(length), max_tokens=2), mix.whole(mix.prompt(length), max_tokens=3))
    await asyncio.gather(*streams)


async def repeats(mix: Mix, setting: Setting) -> None:
    """The same prompt again takes all its whole blocks from the cache, but always has a token left to compute."""
    for length in (setting.block, setting.block + 1, 2 * setting.block, 200):
        prompt = mix.prompt(length)
        found = [(await mix.whole(prompt, max_tokens=3)).cached for _ in range(2)]
        assert found == [0, (length - 1) // setting.block * setting.block if setting.cache else 0]


def check_figures(found: Figures, setting: Setting) -> None:
    assert (found.counters["preemptions"] > 0) == (setting.pool == TINY)
    assert (found.gauges["blocks_cached"] > 0) == setting.cache
    assert not setting.cache or (found.counters["evicted_blocks"] > 0) == (setting.pool == TINY)


@pytest.mark.timeout(300)
async def test_logprobs_are_the_closed_form(served: tuple[Cluster, Setting]) -> None:
    cluster, setting = served
    async with open_session(cluster) as session:
        mix = Mix(session, cluster, seed=7)
        await everything_at_once(mix)
        await streams_with_churn(mix)
        await repeats(mix, setting)
        check_figures(await idle_figures(cluster), setting)
