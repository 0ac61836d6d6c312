"""Streams without end while one process after the other is killed or stopped: every text is the one of an undisturbed run.

`PAGEWIRE_CHAOS_SECONDS` says for how long (30), `PAGEWIRE_CHAOS_SEED` in which order. After each round of ROUND_SECONDS all is at rest and looked at:
nothing may be held, and nothing may grow from round to round.
"""

import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from frontend.register import MAX_ENDED
from tests.support.cluster import Cluster, running_cluster
from tests.support.figures import busy
from tests.support.probes import MIB, ends, take
from tests.support.processes import is_gone
from tests.support.waiting import until

SECONDS = float(os.environ.get("PAGEWIRE_CHAOS_SECONDS", "30"))
SEED = int(os.environ.get("PAGEWIRE_CHAOS_SEED", "1"))
LONG = 120.0
"""From so many seconds on there are enough rounds for drift to tell from filling up."""
STREAMS = 64
PAUSE = 2.0, 4.0
VICTIMS = ("worker0", "tokenizer0", "scheduler")
MORTAL = "frontend1"
"""Where there are two, this one dies too: its clients see a closed connection and ask again."""
HANG_SECONDS = "3"
LONGEST_ANSWER = 240.0
SETTLE_SECONDS = 60.0
SLACK = 5.0
"""Seconds until clients have seen that a frontend is gone."""
ROUND_SECONDS = 15.0
MORE_ROUNDS = 4
"""Where the machine was so slow that some were spared."""
SPARE_DESCRIPTORS = 4
MOST_DRIFT = 0.02
LITTLE = 2 * MIB if SECONDS >= LONG else 8 * MIB
"""So much more memory of its own than in the first rounds a process that lives on may have in the last ones, or so many bytes: in a short run
more than what fills up (`fill_record`)."""
MANY = 20
"""Tokens to draw from with the default model. Another batch rounds otherwise, and in a draw from tens of thousands of unlikely tokens that tells."""


@dataclass
class Chaos:
    """What is asked (a stream's body by its number), what it must give, and what has come: answers given, those that were cut with their frontend,
    and what was wrong. Connections made until `frontend_over` may be those of a frontend that has been ended."""

    cluster: Cluster
    tokens: int
    top_k: int
    expected: list[str] = field(default_factory=list)
    victims: tuple[str, ...] = VICTIMS
    answers: int = 0
    cut: int = 0
    frontend_over: float = 0.0
    leaving: int = 0
    watched: "list[asyncio.Task[None]]" = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    killed: Counter[tuple[str, signal.Signals]] = field(default_factory=Counter)
    chance: random.Random = field(default_factory=lambda: random.Random(SEED))
    ways: Iterator[signal.Signals] = field(default_factory=lambda: itertools.cycle([signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL, signal.SIGKILL]))
    seen: set[psutil.Process] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.turns = itertools.chain.from_iterable(self.chance.sample(self.victims, len(self.victims)) for _ in itertools.count())

    async def ask(self, session: aiohttp.ClientSession, number: int) -> str:
        """The text of a stream that went to its end. Raises AssertionError, or what aiohttp does."""
        body = {
            "model": self.cluster.model, "prompt": f"Story number {number}: once upon a time", "max_tokens": self.tokens, "seed": number,
            "temperature": 0.8, "top_k": self.top_k, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        text, finish, counted = "", None, 0
        expected = self.expected[number] if self.expected else None
        async with session.post("/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()
            async for line in response.content:
                if line.startswith(b"data: {"):
                    event: dict[str, Any] = json.loads(line[6:])
                    assert "error" not in event, event
                    for choice in event["choices"]:
                        text, finish = text + choice["text"], choice["finish_reason"]
                    assert expected is None or expected.startswith(text), (text, expected)
                    counted = event["usage"]["completion_tokens"] if event["usage"] else counted
        assert (finish, counted) == ("length", self.tokens)
        return text

    async def fill_record(self, session: aiohttp.ClientSession) -> None:
        """As many requests as a frontend remembers: until then it grows by 3 MiB, its cards lying scattered among what has gone."""
        left = iter(range(MAX_ENDED))

        async def client() -> None:
            for _ in left:
                async with session.post("/v1/completions", json={"model": self.cluster.model, "prompt": "a", "max_tokens": 1}) as response:
                    assert response.status == 200, await response.text()

        await asyncio.gather(*(client() for _ in range(STREAMS)))

    async def keep_asking(self, session: aiohttp.ClientSession, number: int, ends: float) -> None:
        """One answer at least."""
        answered = False
        while not answered or time.monotonic() < ends:
            begun = time.monotonic()
            try:
                text = await self.ask(session, number)
            except aiohttp.ClientError as error:
                if begun > self.frontend_over:
                    self.failures.append(f"stream {number}: {type(error).__name__} {error}")
                    return
                self.cut += 1
                continue
            except (AssertionError, TimeoutError) as error:
                self.failures.append(f"stream {number}: {type(error).__name__} {error}")
                return
            self.answers += 1
            answered = True
            if text != self.expected[number]:
                self.failures.append(f"stream {number} gave {text!r} instead of {self.expected[number]!r}")

    async def kill(self, over: float) -> None:
        """Each of the victims in turn, in an order that is drawn anew each time, with a few seconds between two deaths. One in four is stopped."""
        while True:
            await asyncio.sleep(self.chance.uniform(*PAUSE))
            if time.monotonic() > over:
                return
            victim = next(self.turns)
            pids = self.cluster.pids()
            with contextlib.suppress(psutil.NoSuchProcess):
                self.seen |= {psutil.Process(pid) for pid in pids.values() if pid}
            if pid := pids[victim]:  # 0: it has not come back yet
                with contextlib.suppress(ProcessLookupError):
                    how = next(self.ways)
                    os.kill(pid, how)
                    self.killed[victim, how] += 1
                    if victim == MORTAL:
                        self.frontend_over = math.inf
                        self.leaving += 1
                        self.watched.append(asyncio.create_task(self.watch_go(pid)))

    async def watch_go(self, pid: int) -> None:
        """One that was only stopped is killed some time."""
        await until(lambda: is_gone(pid), LONGEST_ANSWER)
        self.leaving -= 1
        if not self.leaving:
            self.frontend_over = time.monotonic() + SLACK

    @property
    def missing(self) -> set[str]:
        """Victims that none of it has met so far."""
        return set(self.victims) - {victim for victim, _ in self.killed}

    async def round(self, session: aiohttp.ClientSession, seconds: float) -> None:
        """So long of it, and then until all is at rest."""
        ends = time.monotonic() + seconds
        await asyncio.gather(self.kill(ends), *(self.keep_asking(session, number, ends) for number in range(STREAMS)))
        assert self.failures == [], self.cluster.log()[-20_000:]
        await asyncio.gather(*self.watched)
        self.watched.clear()
        await until(lambda: self.cluster.state().ready and all(value == 0 for value in busy(self.cluster).values()), SETTLE_SECONDS)
        children = {child.pid for child in psutil.Process(self.cluster.pid).children(recursive=True)}
        assert children == set(self.cluster.pids().values()), "a process that nobody knows of"
        assert {process.pid for process in self.seen if process.is_running()} <= children, "a process that was given up lives"


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 2 * LONGEST_ANSWER + 240)
@pytest.mark.parametrize(
    ("model", "tokens", "top_k", "frontends"),
    [("dice-byte", 80, 0, 2), ("smollm2", 24, MANY, 1)],
    ids=["fixture and two frontends", "default model"],
)
async def test_every_text_is_that_of_an_undisturbed_run(
    models: Path, request: pytest.FixtureRequest, model: str, tokens: int, top_k: int, frontends: int
) -> None:
    path = request.getfixturevalue(model) if model == "smollm2" else models / model
    options = ("--threads", "1", "--hang-timeout", HANG_SECONDS, "--max-context", "512", "--max-slots", str(STREAMS), "--frontends", str(frontends))
    with running_cluster(path, *options) as cluster:
        chaos = Chaos(cluster, tokens, top_k, victims=VICTIMS if frontends == 1 else (*VICTIMS, MORTAL))
        async with aiohttp.ClientSession(
            cluster.url, timeout=aiohttp.ClientTimeout(total=LONGEST_ANSWER), connector=aiohttp.TCPConnector(limit=0)
        ) as session:
            if SECONDS >= LONG:
                await chaos.fill_record(session)
            chaos.expected = list(await asyncio.gather(*(chaos.ask(session, number) for number in range(STREAMS))))
            survivors = [psutil.Process(pid) for pid in (cluster.pids()["frontend0"], cluster.pid)]
            descriptors = [process.num_fds() for process in survivors]
            memory: list[list[int]] = [[] for _ in survivors]
            rounds = max(2, round(SECONDS / ROUND_SECONDS))
            while len(memory[0]) < rounds or (chaos.missing and len(memory[0]) < rounds + MORE_ROUNDS):
                await chaos.round(session, ROUND_SECONDS)
                await until(
                    lambda: all(process.num_fds() <= before + SPARE_DESCRIPTORS for process, before in zip(survivors, descriptors, strict=True)),
                    SETTLE_SECONDS,
                )
                for process, sizes in zip(survivors, memory, strict=True):
                    sizes.append(take(process.pid).own)
        told = [[round(size / MIB, 1) for size in sizes] for sizes in memory]
        print(f"{chaos.answers} answers, {chaos.cut} cut, killed {dict(chaos.killed)}, MiB of frontend0 and launch.py after each round {told}")
        assert chaos.answers >= STREAMS
        assert not chaos.missing
        assert all(after <= before + max(LITTLE, MOST_DRIFT * before) for before, after in map(ends, memory)), told


