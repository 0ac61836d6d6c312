"""The load generator: streamed completions at a fixed concurrency (closed loop) or at random times of a fixed rate (open loop).

In the open loop latency counts from the time a request was due, not from when it was sent, so a server that falls behind cannot hide it
(coordinated omission). Times are seconds of time.perf_counter.
"""

import asyncio
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from launcher.security import key_headers

READ_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where requests go and how each is asked. `timeout` is the seconds one request may take."""

    url: str
    model: str
    max_tokens: int
    timeout: float = 600.0


@dataclass(kw_only=True)
class Outcome:
    """One request: when it was due, its first and last text, the gaps between texts, what the server counted, and what went wrong.

    An answer that ends without any text has its first text when it ends. `cached_tokens` of the `prompt_tokens` came from a prefix cache.
    `texts` are the events with text, where they were counted.
    """

    due: float
    sent: float
    ended: float = 0.0
    first: float | None = None
    last: float | None = None
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    texts: int = 0
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All requests of one run; `seconds` from the first one due to the last one ended."""

    outcomes: list[Outcome]
    seconds: float


Prompt = Sequence[int] | str
Json = dict[str, Any]
Watcher = Callable[[Outcome], None]
Keeper = Callable[[str], None]


def no_keeper(text: str) -> None:
    """Keeps nothing."""


def make_prompts(ids: Sequence[int], count: int, length: int, seed: int) -> list[list[int]]:
    """`count` prompts of `length` token ids drawn from `ids`: the same for the same seed, and without common prefixes."""
    chance = random.Random(seed)
    return [chance.choices(ids, k=length) for _ in range(count)]


def arrival_times(rate: float, count: int, seed: int) -> list[float]:
    """Offsets of a Poisson process of `rate` requests a second, from 0; the same for the same seed."""
    chance = random.Random(seed)
    times = [0.0]
    for _ in range(count - 1):
        times.append(times[-1] + chance.expovariate(rate))
    return times[:count]


def new_session() -> aiohttp.ClientSession:
    """A client session that never holds a request back; it shows the key of the environment, if there is one."""
    timeout = aiohttp.ClientTimeout(total=None)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout, read_bufsize=READ_BUFFER_BYTES, headers=key_headers()
    )


async def closed_loop(target: Target, prompts: Sequence[Prompt], concurrency: int, watch: Watcher) -> Measurement:
    """One request per prompt, `concurrency` at a time: each stream sends its next one when its last has ended."""
    waiting = iter(prompts)
    outcomes: list[Outcome] = []

    async def stream(session: aiohttp.ClientSession) -> None:
        for prompt in waiting:
            outcome = await send(session, target, prompt, time.perf_counter())
            outcomes.append(outcome)
            watch(outcome)

    async with new_session() as session, asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(stream(session))
    return _measurement(outcomes)


async def open_loop(target: Target, prompts: Sequence[Prompt], rate: float, seed: int, watch: Watcher) -> Measurement:
    """One request per prompt at Poisson times of `rate` a second, however many are still running."""
    outcomes: list[Outcome] = []
    start = time.perf_counter()

    async def one(session: aiohttp.ClientSession, prompt: Prompt, due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        outcome = await send(session, target, prompt, due)
        outcomes.append(outcome)
        watch(outcome)

    async with new_session() as session, asyncio.TaskGroup() as group:
        for prompt, offset in zip(prompts, arrival_times(rate, len(prompts), seed), strict=True):
            group.create_task(one(session, prompt, start + offset))
    return _measurement(outcomes)


def _measurement(outcomes: list[Outcome]) -> Measurement:
    begin = min((outcome.due for outcome in outcomes), default=0.0)
    end = max((outcome.ended for outcome in outcomes), default=0.0)
    return Measurement(outcomes=outcomes, seconds=end - begin)


async def send(session: aiohttp.ClientSession, target: Target, prompt: Prompt, due: float) -> Outcome:
    """One streamed completion of exactly `target.max_tokens` tokens. Failures are told in the outcome, never raised."""
    outcome = Outcome(due=due, sent=time.perf_counter())
    await stream(session, target, "/v1/completions", _body(target, prompt), outcome)
    if outcome.error is None and outcome.tokens != target.max_tokens:
        outcome.error = "wrong number of tokens"
    return outcome


async def stream(session: aiohttp.ClientSession, target: Target, path: str, body: Json, outcome: Outcome, keep: Keeper = no_keeper) -> None:
    """One streamed request (completion or chat), noted in `outcome`; `keep` is given each piece of text. Failures are told, never raised."""
    try:
        async with asyncio.timeout(target.timeout), session.post(target.url + path, json=body) as response:
            if response.status != 200:
                outcome.error = f"HTTP {response.status}"
            else:
                await _follow(response.content, outcome, keep)
    except TimeoutError:
        outcome.error = "timeout"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        outcome.error = type(error).__name__
    outcome.ended = time.perf_counter()


def _body(target: Target, prompt: Prompt) -> Json:
    return {
        "model": target.model,
        "prompt": prompt,
        "max_tokens": target.max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def _follow(lines: aiohttp.StreamReader, outcome: Outcome, keep: Keeper) -> None:
    """Read server-sent events up to [DONE], noting when text came and what the usage says."""
    async for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            outcome.error = f"stream error {event['error'].get('code') or event['error'].get('type')}"
            return
        _note(event, outcome, keep)
    outcome.error = "stream cut"


def _note(event: Json, outcome: Outcome, keep: Keeper) -> None:
    for choice in event.get("choices", ()):
        delta = choice.get("delta", {})
        text = delta.get("content") if "delta" in choice else choice.get("text")
        if text:
            keep(text)
        if text or delta.get("reasoning_content") or delta.get("tool_calls") or (choice.get("finish_reason") and outcome.first is None):
            _note_time(outcome)
    if usage := event.get("usage"):
        outcome.prompt_tokens, outcome.tokens = usage["prompt_tokens"], usage["completion_tokens"]
        outcome.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def _note_time(outcome: Outcome) -> None:
    now = time.perf_counter()
    if outcome.last is None:
        outcome.first = now
    else:
        outcome.gaps.append(now - outcome.last)
    outcome.last = now
