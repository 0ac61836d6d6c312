"""Overload of the whole cluster: refusals that say when to come again, requests that are out of time wherever they are, readers that stop reading."""

import asyncio
import os
import signal
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.asking import ask, complete, stream, strict, text
from tests.support.cluster import ROOT, Cluster, running_cluster
from tests.support.figures import busy, figures
from tests.support.launch_paced import STEP_SECONDS
from tests.support.scraping import Scrape
from tests.support.waiting import until

PATH = "/v1/completions"
LONG = {"prompt": "A", "max_tokens": 1900, "ignore_eos": True}
PACE = 0.004
"""Seconds for a step, on whatever machine: LONG takes 7.6 s."""
SLOTS, QUEUE = 2, 3
GRACE_SECONDS = 1.0
"""For so long a frontend leaves it to the scheduler to end what is out of time."""
TRIES = 4
"""What is told is how long it takes at the pace of the last seconds, and others may have the machine then."""


@pytest.fixture(scope="module")
def crowded(models: Path) -> Iterator[Cluster]:
    sizes = "--max-slots", str(SLOTS), "--max-queue", str(QUEUE), "--max-timeout", "60", "--hang-timeout", "0"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))))
        patch.setenv(STEP_SECONDS, str(PACE))
        with running_cluster(models / "dice-byte", *sizes, script=ROOT / "tests" / "support" / "launch_paced.py") as running:
            yield running


async def post(cluster: Cluster, **body: Any) -> tuple[int, dict[str, str], Any]:
    """Status, headers and body."""
    async with aiohttp.ClientSession(cluster.url) as session, session.post(PATH, json={"model": cluster.model} | body) as response:
        return response.status, {name.lower(): value for name, value in response.headers.items()}, strict(await response.text())


async def scrape(cluster: Cluster) -> Scrape:
    async with aiohttp.ClientSession(cluster.url) as session, session.get("/metrics") as response:
        return Scrape.of(await response.text())


@asynccontextmanager
async def filled(cluster: Cluster, requests: int, tokens: int) -> AsyncIterator[Callable[[], None]]:
    """While so many requests for so many tokens run or wait. The worker is stopped until what is yielded is called."""
    go_on = partial(cluster.kill, "worker0", signal.SIGCONT)
    cluster.kill("worker0", signal.SIGSTOP)
    jobs = [asyncio.create_task(ask(cluster, PATH, prompt="A", max_tokens=tokens, ignore_eos=True)) for _ in range(requests)]
    try:
        async with asyncio.timeout(60):
            while (now := (await figures(cluster)).gauges)["running"] + now["waiting"] < requests:
                await asyncio.sleep(0.02)
        yield go_on
    finally:
        go_on()
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        await until(lambda: not any(busy(cluster).values()), 60)


@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_who_is_refused_and_waits_as_he_was_told_is_let_in(crowded: Cluster) -> None:
    """Nobody else asks meanwhile (tests/unit/test_scheduler_overload.py has many more cases of it, on a clock of its own)."""
    await complete(crowded, prompt="A", max_tokens=400, ignore_eos=True)  # so that its pace is known
    before = await scrape(crowded)
    async with filled(crowded, SLOTS + QUEUE, 400) as go_on:
        status, headers, body = await post(crowded, prompt="B", max_tokens=1)
        go_on()
        refused = 0
        while status == 429:
            refused += 1
            assert refused <= TRIES
            assert (body["error"]["code"], body["error"]["type"]) == ("queue_full", "rate_limit_error")
            told = int(headers["retry-after"])
            assert 1 <= told <= 60
            await asyncio.sleep(told)
            status, headers, body = await post(crowded, prompt="B", max_tokens=1, timeout=60)
        assert status == 200, body
        assert refused
    now = await scrape(crowded)
    assert now.sum("requests_limited_total", reason="queue_full") == before.sum("requests_limited_total", reason="queue_full") + refused
    assert now.sum("requests_limited_total") == now.sum("requests_refused_total", status="429")
    assert now.scheduler("refused_full") == now.scheduler("refused") == before.scheduler("refused") + refused


async def test_out_of_time_in_line_without_ever_a_slot(crowded: Cluster) -> None:
    """Short answers before have the scheduler expect that the long ones are about to end, so nobody is refused for his timeout."""
    for _ in range(4):
        await complete(crowded, prompt="A", max_tokens=1, n=64)
    before = await figures(crowded)
    async with filled(crowded, SLOTS, 1900) as go_on:
        go_on()
        began = time.monotonic()
        status, _, body = await post(crowded, prompt="C", max_tokens=5, timeout=1.5)
        assert (status, body["error"]["code"], body["error"]["type"]) == (504, "deadline_exceeded", "timeout_error")
        took = time.monotonic() - began
        assert took > 1.4
        now = await figures(crowded)
        assert now.counters["prefix_queries"] == before.counters["prefix_queries"] + 2 * SLOTS, "only the others, of 2 tokens each, had slots"
        expired, cancelled = (now.counters[name] - before.counters[name] for name in ("expired", "cancelled"))
        assert (expired, cancelled) == (1, 0) or (took > 1.5 + GRACE_SECONDS and (expired, cancelled) == (0, 1))


async def test_out_of_time_while_it_runs(crowded: Cluster) -> None:
    """A stream has its tokens and then the error, another request a 504; slots and blocks are free then."""
    before = await scrape(crowded)
    events, (status, _, _) = await asyncio.gather(stream(crowded, PATH, **LONG, timeout=3), post(crowded, **LONG, timeout=3))
    assert sum(len(event["choices"]) for event in events[:-1]) > 3
    assert (events[-1]["error"]["code"], status) == ("deadline_exceeded", 504)
    await until(lambda: not any(busy(crowded).values()), 60)
    now = await scrape(crowded)
    now.check()
    assert now.sum("requests_expired_total") == before.sum("requests_expired_total") + 2
    assert now.sum("requests_refused_total", status="504") == before.sum("requests_refused_total", status="504") + 1


async def test_time_is_not_given_again_by_deaths(crowded: Cluster) -> None:
    """Scheduler and worker die in the middle: the stream goes on and ends when its time is over, counted from its arrival. Where it seems to have had
    all of it again, the machine may have stood still, and another one is asked."""
    for _ in range(TRIES):
        began = time.monotonic()
        asked = asyncio.create_task(stream(crowded, PATH, **LONG, timeout=5))
        await until(lambda: busy(crowded).get("running") == 1)
        await asyncio.sleep(began + 2.5 - time.monotonic())
        died = time.monotonic()
        for name in ("scheduler", "worker0"):
            crowded.kill(name)
        events = await asked
        ended = time.monotonic()
        assert events[-1]["error"]["code"] == "deadline_exceeded"
        assert ended - began > 4.9
        await until(lambda: crowded.state().ready and not any(busy(crowded).values()), 60)
        await complete(crowded, prompt="A", max_tokens=3, ignore_eos=True)
        if ended - died < 4.9:
            return
    raise AssertionError("it had its time again")


# Cases of clients


def opened(cluster: Cluster, request_id: str, prompt: str, tokens: int = 1500) -> socket.socket:
    """A stream on a raw connection, of which nothing has been read."""
    body = f'{{"prompt": "{prompt}", "max_tokens": {tokens}, "ignore_eos": true, "stream": true, "temperature": 0}}'
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nX-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = socket.create_connection(("127.0.0.1", cluster.port), timeout=30)
    connection.sendall((head + body).encode())
    return connection


def rest(connection: socket.socket) -> str:
    """The text of a stream, to its end."""
    said = b""
    while b"data: [DONE]\n\n" not in said[-64:]:
        said += connection.recv(1 << 16)
    events = [strict(line[6:].decode()) for line in said.split(b"\n") if line.startswith(b"data: {")]
    return "".join(choice["text"] for event in events for choice in event["choices"])


async def test_c30_readers_that_stop_for_a_while_lose_nothing_and_those_that_reset_free_everything(dice: Cluster) -> None:
    expected = await text(dice, prompt="A", max_tokens=400, ignore_eos=True, temperature=0)
    slow = [opened(dice, f"slow{number}", "A", 400) for number in range(4)]
    gone = [opened(dice, f"gone{number}", "A") for number in range(6)]
    for connection in gone:
        await asyncio.to_thread(connection.recv, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    began = time.monotonic()
    assert await text(dice, prompt="B", max_tokens=3, ignore_eos=True)
    assert time.monotonic() - began < 40.0, "others are served meanwhile"
    await until(lambda: not any(busy(dice).values()), 60)
    for connection in slow:
        with connection:
            assert await asyncio.to_thread(rest, connection) == expected


async def test_c32_the_id_of_a_client_names_nothing_inside(chain: Cluster) -> None:
    """Streams with one id: one is closed half-way, the id comes again at once, and an id of 10,000 characters is cut."""
    expected = {prompt: await text(chain, prompt=prompt, temperature=0, max_tokens=20, ignore_eos=True) for prompt in "AB"}
    for _ in range(5):
        pair = {prompt: opened(chain, "x", prompt, 20) for prompt in "AB"}
        with opened(chain, "x", "A", 2000) as closed:
            await asyncio.to_thread(closed.recv, 1)
        with opened(chain, "x", "B", 20) as again:
            assert await asyncio.to_thread(rest, again) == expected["B"]
        for prompt, connection in pair.items():
            with connection:
                assert await asyncio.to_thread(rest, connection) == expected[prompt]
    headers = {"X-Request-Id": "y" * 10_000}
    async with aiohttp.ClientSession(chain.url) as session, session.post(PATH, json={"prompt": "A", "max_tokens": 1}, headers=headers) as response:
        assert (response.status, response.headers["X-Request-Id"]) == (200, "y" * 128)
    await until(lambda: not any(busy(chain).values()), 60)
    (await scrape(chain)).check()
