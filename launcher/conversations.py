"""Users who chat with a model at the same time: one system prompt for all, and each turn brings the whole conversation so far."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from launcher.load import Outcome, Target, new_session, stream

Message = dict[str, str]
Watcher = Callable[[Outcome], None]


@dataclass(frozen=True, kw_only=True)
class Script:
    """What is said to the model: the system prompt of every user, and one list of messages per user, a message per turn."""

    system: str
    messages: list[list[str]]


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One answer: whose, at which turn (from 1), its text, and how it came."""

    user: int
    number: int
    text: str
    outcome: Outcome


def make_script(words: Sequence[str], users: int, turns: int, system_words: int, user_words: int, seed: int) -> Script:
    """Texts of so many words drawn from `words`: the same for the same seed, and no two messages alike but by chance."""
    chance = random.Random(seed)

    def text(count: int) -> str:
        return " ".join(chance.choices(words, k=count))

    return Script(system=text(system_words), messages=[[text(user_words) for _ in range(turns)] for _ in range(users)])


async def converse(target: Target, script: Script, watch: Watcher) -> list[Turn]:
    """All users at once, each with one request at a time; the answers in the order in which they ended.

    Answers are greedy and end by themselves or after `target.max_tokens`. A user whose request failed says no more.
    """
    turns: list[Turn] = []

    async def chat(session: aiohttp.ClientSession, user: int) -> None:
        history = [{"role": "system", "content": script.system}]
        for number, message in enumerate(script.messages[user], 1):
            history.append({"role": "user", "content": message})
            text, outcome = await ask(session, target, history)
            turns.append(Turn(user=user, number=number, text=text, outcome=outcome))
            watch(outcome)
            if outcome.error is not None:
                return
            history.append({"role": "assistant", "content": text})

    async with new_session() as session, asyncio.TaskGroup() as group:
        for user in range(len(script.messages)):
            group.create_task(chat(session, user))
    return turns


async def ask(session: aiohttp.ClientSession, target: Target, messages: Sequence[Message]) -> tuple[str, Outcome]:
    """One streamed, greedy answer to a conversation: its text and how it came. Failures are told in the outcome, never raised."""
    now = time.perf_counter()
    outcome = Outcome(due=now, sent=now)
    pieces: list[str] = []
    await stream(session, target, "/v1/chat/completions", _body(target, messages), outcome, pieces.append)
    return "".join(pieces), outcome


def _body(target: Target, messages: Sequence[Message]) -> dict[str, Any]:
    return {
        "model": target.model,
        "messages": messages,
        "max_tokens": target.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
