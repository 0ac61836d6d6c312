"""Real-world failures of processes that die, hang or are kept busy, against the whole cluster: each test names what went wrong elsewhere."""

import asyncio
import contextlib
import io
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from messages.cluster import READY
from tests.support.asking import ask, post
from tests.support.cluster import Cluster, running_cluster
from tests.support.completions import complete, events, open_session
from tests.support.waiting import until

EACH = 8
TOKENS = 64
HANG_SECONDS = 10
STALLED_SECONDS = 3
"""How long a process may be silent, as docs/architecture.md says."""
FREEZE_SECONDS, TRIES = 1.0, 6
AWAY_SECONDS = 0.2
"""A process that has died is away for longer."""
MOST_SECONDS = 20.0
"""Until health tells of what has happened."""
MEGABYTE = 1_000_000
Said = tuple[str, int]
"""The text of an answer and how many tokens it has."""


@pytest.fixture(scope="module")
def cluster(models: Path) -> Iterator[Cluster]:
    with running_cluster(models / "dice-byte", "--chunk-tokens", "256", "--hang-timeout", str(HANG_SECONDS)) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> list[Said]:
    async def say() -> list[Said]:
        async with open_session(cluster) as session:
            return await ask_both(cluster, session, asyncio.Semaphore(0))

    return asyncio.run(say())


@dataclass
class Probe:
    """/health/ready, asked again and again: how long its answers took and how long it was not asked, and what it said when it was 503."""

    slowest: float = 0.0
    gap: float = 0.0
    unready: list[dict[str, Any]] = field(default_factory=list)
    status: int = 0

    async def watch(self, session: aiohttp.ClientSession, pause: float) -> None:
        before = time.monotonic()
        while True:
            began = time.monotonic()
            async with session.get("/health/ready") as response:
                body, self.status = await response.json(), response.status
            now = time.monotonic()
            self.slowest, self.gap, before = max(self.slowest, now - began), max(self.gap, now - before), now
            if self.status == 503:
                self.unready.append(body)
            await asyncio.sleep(pause)


@asynccontextmanager
async def watched(session: aiohttp.ClientSession, pause: float) -> AsyncIterator[Probe]:
    probe = Probe()
    task = asyncio.create_task(probe.watch(session, pause))
    try:
        yield probe
    finally:
        task.cancel()
        await asyncio.wait([task])


def options(number: int) -> dict[str, Any]:
    return {"prompt": [65 + number] * 30, "max_tokens": TOKENS, "temperature": 0.8, "seed": number, "logprobs": None}


async def plain(cluster: Cluster, session: aiohttp.ClientSession, number: int) -> Said:
    answer = await complete(session, cluster, **options(number))
    return answer.choices[0].text, answer.completion_tokens


async def streamed(cluster: Cluster, session: aiohttp.ClientSession, number: int, begun: asyncio.Semaphore) -> Said:
    """`begun` is released when the first text is there."""
    text, tokens = "", 0
    async for event in events(session, cluster, **options(number)):
        if not text:
            begun.release()
        text += "".join(choice["text"] for choice in event["choices"])
        tokens = event["usage"]["completion_tokens"] if event["usage"] else tokens
    return text, tokens


async def ask_both(cluster: Cluster, session: aiohttp.ClientSession, begun: asyncio.Semaphore) -> list[Said]:
    """8 streams and 8 plain requests at once."""
    streams = [streamed(cluster, session, number, begun) for number in range(EACH)]
    return await asyncio.gather(*streams, *(plain(cluster, session, number) for number in range(EACH)))


async def disturbed(cluster: Cluster, undisturbed: list[Said], name: str, how: signal.Signals) -> Probe:
    """The probe of a process that was told to go in the midst of 16 requests, with one more that comes while health is bad.

    Tried again where this process was so slow that they had all ended before, or that health was good again before it was asked.
    """
    async with open_session(cluster) as session, asyncio.timeout(100):
        for _ in range(TRIES):
            begun = asyncio.Semaphore(0)
            async with watched(session, 0.02) as probe:
                asking = asyncio.create_task(ask_both(cluster, session, begun))
                for _ in range(EACH):
                    await begun.acquire()
                if not asking.done():
                    probe.gap = 0.0
                    cluster.kill(name, how)
                    with contextlib.suppress(TimeoutError):
                        await until(lambda: bool(probe.unready), MOST_SECONDS)
                    assert probe.unready or probe.gap > AWAY_SECONDS, f"health has not told of {name}"
                    assert await plain(cluster, session, 0) == undisturbed[0]
                assert await asking == undisturbed
                while probe.status != 200:
                    await asyncio.sleep(0.01)
            if probe.unready:
                return probe
    raise AssertionError(f"health has not told of {name}")


@pytest.mark.parametrize("name", ["scheduler", pytest.param("tokenizer0", marks=pytest.mark.slow), pytest.param("worker0", marks=pytest.mark.slow)])
async def test_c51_a_killed_process_is_a_pause_that_health_tells_of(cluster: Cluster, undisturbed: list[Said], name: str) -> None:
    probe = await disturbed(cluster, undisturbed, name, signal.SIGKILL)
    assert any(name in body["reason"] for body in probe.unready)
    assert all(body["accepting"] for body in probe.unready)
    assert {process.phase for process in cluster.state().processes} == {READY}


@pytest.mark.slow
async def test_c51_a_stopped_scheduler_turns_health_bad_in_time_and_is_replaced(cluster: Cluster, undisturbed: list[Said]) -> None:
    """Silent for 3 s it is stalled, for --hang-timeout killed; meanwhile every answer waits, and then goes on."""
    pid = cluster.pids()["scheduler"]
    probe = await disturbed(cluster, undisturbed, "scheduler", signal.SIGSTOP)
    told = re.search(r"scheduler stalled: not heard from for (\d+)", "\n".join(body["reason"] for body in probe.unready))
    assert told is not None, probe.unready
    assert STALLED_SECONDS <= int(told[1]) <= min(HANG_SECONDS, STALLED_SECONDS + 2 + probe.gap)
    assert f"scheduler has not been heard from for {HANG_SECONDS} s or more; killing it" in cluster.log()
    assert cluster.pids()["scheduler"] != pid


async def keep_streaming(cluster: Cluster, session: aiohttp.ClientSession, gaps: list[float]) -> None:
    """One long stream after the other; `gaps` gets the seconds between two events of one of them."""
    while True:
        last = None
        async for _ in events(session, cluster, [65] * 8, max_tokens=2000, temperature=0.8, logprobs=None):
            now = time.monotonic()
            if last is not None:
                gaps.append(now - last)
            last = now


async def all_go_on(gaps: list[list[float]]) -> None:
    before = [len(found) for found in gaps]
    async with asyncio.timeout(30):
        while any(len(found) < number + 2 for found, number in zip(gaps, before, strict=True)):
            await asyncio.sleep(0.01)


async def nobody_freezes(cluster: Cluster, burden: Callable[[], Awaitable[None]]) -> None:
    """Four streams go on and health answers, both without a second's pause, under this burden; in one of a few tries: the machine has others too."""
    pauses = []
    for _ in range(TRIES):
        gaps: list[list[float]] = [[] for _ in range(4)]
        async with open_session(cluster) as session, watched(session, 0.1) as probe, asyncio.TaskGroup() as group:
            streams = [group.create_task(keep_streaming(cluster, session, found)) for found in gaps]
            await all_go_on(gaps)
            await burden()
            await all_go_on(gaps)
            for task in streams:
                task.cancel()
        pauses.append((probe.slowest, max(map(max, gaps)), probe.unready))
        if probe.status == 200 and not probe.unready and max(pauses[-1][:2]) < FREEZE_SECONDS:
            return
    raise AssertionError(f"pauses of {pauses}")


def huge(size: int, word: bool) -> dict[str, bytes]:
    """Bodies of both endpoints with a text of `size` characters, by path."""
    text = "a" * size if word else "word " * (size // 5)
    bodies = {"/v1/completions": {"prompt": text}, "/v1/chat/completions": {"messages": [{"role": "user", "content": text}]}}
    return {path: json.dumps(body).encode() for path, body in bodies.items()}


@pytest.mark.parametrize(
    ("size", "word"),
    [
        pytest.param(5 * MEGABYTE, False, id="5 MB"),
        pytest.param(5 * MEGABYTE, True, id="a word of 5 MB"),
        pytest.param(20 * MEGABYTE, False, id="20 MB", marks=pytest.mark.slow),
    ],
)
async def test_c54_a_huge_prompt_freezes_nobody(cluster: Cluster, size: int, word: bool) -> None:
    bodies = await asyncio.to_thread(huge, size, word)

    async def refused() -> None:
        for path, body in bodies.items():
            status, answer = await post(cluster, path, io.BytesIO(body))
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")

    await nobody_freezes(cluster, refused)


async def test_c54_a_burst_of_short_requests_freezes_nobody(cluster: Cluster) -> None:
    async def burst() -> None:
        answers = await asyncio.gather(*(ask(cluster, "/v1/completions", prompt="A", max_tokens=4, ignore_eos=True) for _ in range(200)))
        assert {(status, answer["usage"]["completion_tokens"]) for status, answer in answers} == {(200, 4)}

    await nobody_freezes(cluster, burst)
