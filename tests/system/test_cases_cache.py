"""Real-world failures of KV pools, prefix caches and chunked prefill against the whole cluster: each test names what went wrong elsewhere."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import psutil
import pytest

from tests.support.cluster import Cluster, running_cluster
from tests.support.completions import Answer, body_of, complete, events, open_session, stream
from tests.support.figures import idle_figures, scheduler_state
from tests.support.histo import check, ids_of

COMMON = ["--threads", "1", "--log-level", "debug"]  # at this level the scheduler checks its invariants whenever it is idle
POOL = 256
SOON = 30.0
CHUNK = 32
EQUAL = 1e-4
ROUNDS = 6
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def prompt(length: int, seed: int, alphabet: str = LETTERS) -> list[int]:
    """Ids of `length` characters of `alphabet`."""
    return ids_of("".join(np.random.default_rng(seed).choice(list(alphabet), size=length)))


def same(left: Answer, right: Answer, tolerance: float = EQUAL) -> None:
    for ours, theirs in zip(left.choices, right.choices, strict=True):
        assert (ours.text, ours.tokens, ours.finish) == (theirs.text, theirs.tokens, theirs.finish)
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=tolerance)
        for mine, other in zip(ours.top, theirs.top, strict=True):
            assert sorted(mine.values()) == pytest.approx(sorted(other.values()), abs=tolerance)


async def refusal(session: aiohttp.ClientSession, cluster: Cluster, ids: list[int], **options: Any) -> tuple[int, str | None]:
    async with session.post("/v1/completions", json=body_of(cluster, ids, options)) as response:
        return response.status, (await response.json())["error"]["code"]


async def short(session: aiohttp.ClientSession, cluster: Cluster, seed: int) -> None:
    """A short request that must be answered soon."""
    ids = prompt(5, 1000 + seed)
    async with asyncio.timeout(SOON):
        check(await complete(session, cluster, ids, max_tokens=2), ids)


@pytest.fixture(scope="module", params=["on", "off"], ids=["cache", "nocache"])
def small(models: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with running_cluster(models / "histo-byte", "--kv-tokens", str(POOL), "--prefix-cache", request.param, *COMMON) as running:
        yield running


async def test_c33_a_prompt_longer_than_the_pool(small: Cluster) -> None:  # (a)
    assert f"context {POOL} tokens" in small.log()  # the start says that the pool bounds the context
    async with open_session(small) as session:
        for length in (300, POOL):
            assert await refusal(session, small, prompt(length, length), max_tokens=1) == (400, "context_length_exceeded")
            await short(session, small, length)


@pytest.mark.parametrize(("length", "max_tokens"), [(250, 100), (POOL - 16, 100), (POOL - 1, 100), (POOL - 1, 1), (POOL - 17, 17)])
async def test_c33_a_request_that_reaches_the_edge_of_the_pool(small: Cluster, length: int, max_tokens: int) -> None:  # (b), (c)
    ids = prompt(length, length)
    async with open_session(small) as session:
        job = asyncio.create_task(complete(session, small, ids, max_tokens=max_tokens))
        await short(session, small, max_tokens)
        answer = await job
        check(answer, ids)
        assert answer.choices[0].finish == "length"
        assert answer.completion_tokens == min(max_tokens, POOL - length)
        assert len(answer.choices[0].tokens) == answer.completion_tokens


@pytest.mark.parametrize(("length", "max_tokens"), [(120, 100), (60, 150)])
async def test_c33_two_requests_that_do_not_fit_together(small: Cluster, length: int, max_tokens: int) -> None:  # (d)
    before = (await scheduler_state(small)).counters["preemptions"]
    for turn in range(ROUNDS):  # where one comes too long after the other, it is not admitted beside it
        prompts = [prompt(length, 10 * length + 2 * turn + number) for number in range(2)]
        async with open_session(small) as session:
            jobs = [asyncio.create_task(stream(session, small, ids, max_tokens=max_tokens)) for ids in prompts]
            await short(session, small, length)
            for ids, answer in zip(prompts, await asyncio.gather(*jobs), strict=True):
                check(answer, ids)
                assert (answer.choices[0].finish, answer.completion_tokens) == ("length", max_tokens)
        after = (await idle_figures(small)).counters["preemptions"]
        if after > before or length == 120:  # two long prompts are not admitted together in the first place
            return
    pytest.fail("nothing was preempted")


async def test_c33_nothing_spins_afterwards(small: Cluster) -> None:
    """Neither processor time nor steps are spent once the pool was full and is idle again."""
    steps = (await idle_figures(small)).counters["steps"]
    processes = [psutil.Process(pid) for name, pid in small.pids().items() if name in ("scheduler", "worker0")]
    before = [sum(process.cpu_times()[:2]) for process in processes]
    assert (await idle_figures(small)).counters["steps"] == steps  # takes half a second at least
    assert all(sum(process.cpu_times()[:2]) - start < 0.25 for process, start in zip(processes, before, strict=True))


@pytest.fixture(scope="module", params=[16, 1], ids="block{}".format)
def cached(models: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, int]]:
    options = ["--block-size", str(request.param), "--kv-tokens", "1024", "--max-slots", "8", *COMMON]
    with running_cluster(models / "histo-byte", *options) as running:
        yield running, request.param


async def test_c35_a_prompt_that_is_cached_to_its_last_block(cached: tuple[Cluster, int]) -> None:
    cluster, block = cached
    async with open_session(cluster) as session:
        for number, length in enumerate(sorted({max(block - 1, 1), block, block + 1, 2 * block, 4 * block})):
            ids = prompt(length, length, LETTERS[4 * number : 4 * number + 4])  # no prompt begins like that of another length
            whole = (length - 1) // block * block
            first = await complete(session, cluster, ids, max_tokens=4)
            again = [await complete(session, cluster, ids, max_tokens=4) for _ in range(2)]
            again += await asyncio.gather(*(complete(session, cluster, ids, max_tokens=4) for _ in range(4)))
            again.append(await complete(session, cluster, ids, max_tokens=4, n=4))
            check(first, ids)
            assert [answer.cached for answer in (first, *again[:6])] == [0, *[whole] * 6]
            assert again[6].cached < length
            for answer in again:
                for choice in answer.choices:
                    same(Answer([choice], 0, 0, 0), first)
            await check_unseen(session, cluster, ids, block)
    await idle_figures(cluster)


async def check_unseen(session: aiohttp.ClientSession, cluster: Cluster, ids: list[int], block: int) -> None:
    """A prompt that differs in its first token only shares nothing, one that differs in the last has a hit for the rest."""
    for other, hit in (([ids[0] ^ 1, *ids[1:]], 0), ([*ids[:-1], ids[-1] ^ 1], (len(ids) - 1) // block * block)):
        answer = await complete(session, cluster, other, max_tokens=2)
        check(answer, other)
        assert answer.cached == (hit if len(ids) > 1 else 0)


async def test_c37_blocks_of_two_rows_that_computed_the_same_prefix(cached: tuple[Cluster, int]) -> None:
    """X ends at once, Y and for a while its twin go on with the same 256 tokens while a flood of other symbols keeps the pool full."""
    cluster, block = cached
    before = (await scheduler_state(cluster)).counters["evicted_blocks"]
    for turn in range(ROUNDS):  # Y may have ended before much was asked beside it
        probes = await probe_beside_twins(cluster, block, turn)
        figures = await idle_figures(cluster)
        assert figures.gauges["blocks_cached"] > 0
        if probes >= 3 and figures.counters["evicted_blocks"] > before:
            return
    pytest.fail(f"{probes} probes, {figures.counters['evicted_blocks'] - before} blocks evicted")


async def probe_beside_twins(cluster: Cluster, block: int, turn: int) -> int:
    """How often Y's prefix was asked for while Y ran."""
    ids = prompt(256, 37 + turn, "ABC")
    async with open_session(cluster) as session:
        y = asyncio.create_task(stream(session, cluster, ids, max_tokens=200))
        twin = asyncio.create_task(stream(session, cluster, ids, max_tokens=80))  # goes on to compute what Y computes
        check(await complete(session, cluster, ids, max_tokens=1), ids)
        floods = [asyncio.create_task(flood(session, cluster, 3 * turn + number, y)) for number in range(3)]
        probes = 0
        while not y.done():
            probe = await complete(session, cluster, [*ids, ids_of("D")[0]], max_tokens=1)
            if not y.done():
                probes += 1
                assert probe.cached == 256 // block * block  # what a running row refers to is never evicted
        answer = await y
        await asyncio.gather(*floods)
        check(await twin, ids)
    check(answer, ids)
    assert answer.completion_tokens == 200
    return probes


async def flood(session: aiohttp.ClientSession, cluster: Cluster, number: int, until: "asyncio.Task[Answer]") -> None:
    """One unrelated prompt after the other, in symbols that Y has not."""
    for turn in range(1000):
        if until.done():
            return
        ids = prompt(150, 1000 * number + turn, "uvwxyz")
        check(await complete(session, cluster, ids, max_tokens=4), ids)


@pytest.fixture(scope="module", params=["histo-byte", "rand-byte"])
def chunked(models: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, Cluster | None]]:
    """Prompts in chunks of CHUNK tokens, and in one piece with no cache, unless it is known what the model says."""
    common = ["--max-context", "1024", "--kv-tokens", "8192", "--max-slots", "16", *COMMON]
    whole = ["--chunk-tokens", "1024", "--max-step-tokens", "2048", "--prefix-cache", "off"]
    with ExitStack() as stack:
        pieces = stack.enter_context(running_cluster(models / request.param, "--chunk-tokens", str(CHUNK), *common))
        known = request.param == "histo-byte"
        yield pieces, None if known else stack.enter_context(running_cluster(models / request.param, *whole, *common))


async def compare(whole: Cluster | None, found: Sequence[Answer], prompts: Sequence[list[int]]) -> None:
    """The answers are those to the prompts in one piece."""
    for answer, ids in zip(found, prompts, strict=True):
        assert (answer.prompt_tokens, answer.completion_tokens, len(answer.choices[0].tokens)) == (len(ids), 4, 4)
    if whole is None:
        for answer, ids in zip(found, prompts, strict=True):
            check(answer, ids)
        return
    async with open_session(whole) as session:
        wanted = await asyncio.gather(*(complete(session, whole, ids, max_tokens=4) for ids in prompts))
    for ours, theirs in zip(found, wanted, strict=True):
        same(ours, theirs, 1e-3)


async def test_c39_prompts_about_as_long_as_a_chunk(chunked: tuple[Cluster, Cluster | None]) -> None:
    """Alone, ten at once, and behind a cached prefix that leaves a token, a chunk or a token more than a chunk."""
    pieces, whole = chunked
    lengths = [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1]
    prefix = prompt(2 * CHUNK, 39)
    async with open_session(pieces) as session:
        for length in lengths:
            alone = prompt(length, length)
            await compare(whole, [await stream(session, pieces, alone, max_tokens=4)], [alone])
            together = [prompt(length, 100 * length + number) for number in range(10)]
            await compare(whole, await asyncio.gather(*(complete(session, pieces, ids, max_tokens=4) for ids in together)), together)
        await complete(session, pieces, prefix, max_tokens=1)
        for left in (1, CHUNK, CHUNK + 1):
            ids = prefix + prompt(left, left)
            found = await complete(session, pieces, ids, max_tokens=4)
            assert found.cached == len(prefix)
            await compare(whole, [found], [ids])
    await idle_figures(pieces)


async def test_c39_running_rows_go_on_between_the_chunks(chunked: tuple[Cluster, Cluster | None]) -> None:
    """Both in one stream, which says what came first whenever it is read."""
    pieces, _ = chunked
    chunks = 20
    got = 0
    both = [prompt(3, 3), prompt(chunks * CHUNK, 4)]
    async with open_session(pieces) as session, contextlib.aclosing(events(session, pieces, both, max_tokens=100)) as running:
        async for event in running:
            if event["choices"][0]["index"] == 1:
                break
            got += bool(event["choices"][0]["text"])
    assert got >= chunks // 2  # every chunk but the first shares its step with the row


async def test_cache_salt_keeps_prompts_apart(cached: tuple[Cluster, int]) -> None:
    cluster, block = cached
    ids = prompt(4 * block, 99, "QRST")
    hit = (len(ids) - 1) // block * block
    async with open_session(cluster) as session:
        for salts, expected in (("ab", 0), ("ab", hit), ("c", 0), ("cba", hit)):
            for salt in salts:
                answer = await complete(session, cluster, ids, max_tokens=2, cache_salt=salt)
                check(answer, ids)
                assert answer.cached == expected, salt
        plain = [await complete(session, cluster, ids, max_tokens=2) for _ in range(2)]
        assert [answer.cached for answer in plain] == [0, hit]
        together = await asyncio.gather(*(complete(session, cluster, ids, max_tokens=2, cache_salt=f"new{number}") for number in range(4)))
        assert [answer.cached for answer in together] == [0] * 4
        for answer in together:
            check(answer, ids)
