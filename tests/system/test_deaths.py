"""Any process behind the frontend dies while answers of every kind are being written: what clients get is what they would have got."""

import asyncio
from typing import Any

import aiohttp

from tests.support.cluster import Cluster
from tests.support.completions import Answer, complete, open_session, stream
from tests.support.figures import busy
from tests.support.waiting import until

TOKENS = 48
COMMON: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 1.0, "logprobs": None}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"seed": 1},
    "three choices": {"seed": 2, "n": 3},
    "logprobs": {"seed": 3, "logprobs": 2},
    "greedy": {"temperature": 0},
    "stop string": {"seed": 4, "stop": ["dd"]},
    "stop string that never comes whole": {"seed": 5, "stop": ["abcdabcdabcdabcd"]},
    "penalties": {"seed": 6, "repetition_penalty": 1.3, "presence_penalty": 0.5},
    "bias and least tokens": {"seed": 7, "logit_bias": {"64": 2.0}, "min_tokens": 40, "stop": ["cc"]},
    "echo and the prompt's logprobs": {"seed": 8, "logprobs": 0, "echo": True},
    "a form": {"seed": 9, "guided_regex": "([a-f]{2}[0-9] ){40}", "ignore_eos": False},
}
"""Options of a completion by what is special about it; all run at once, once streamed and once whole."""


async def ask_all(cluster: Cluster, session: aiohttp.ClientSession) -> list[Answer]:
    prompts = [[65 + number] * 40 for number in range(len(KINDS))]
    asked = [(ask, prompt, COMMON | kind) for ask in (stream, complete) for prompt, kind in zip(prompts, KINDS.values(), strict=True)]
    return list(await asyncio.gather(*(ask(session, cluster, prompt, **options) for ask, prompt, options in asked)))


async def on_their_way(cluster: Cluster, session: aiohttp.ClientSession) -> "asyncio.Task[list[Answer]]":
    """Some of them are seen to run, which they may not be before all have ended: then they are asked again."""
    for _ in range(10):
        asking = asyncio.create_task(ask_all(cluster, session))
        await until(lambda: asking.done() or running(cluster) > len(KINDS))  # noqa: B023
        if not asking.done():
            return asking
        await asking
    raise AssertionError("none was seen to run")


def running(cluster: Cluster) -> float:
    return next(process.gauges.get("running", 0) for process in cluster.state().processes if process.name == "scheduler")


async def test_nothing_is_lost_whoever_dies(dice: Cluster) -> None:
    cluster, before = dice, restarts(dice)
    async with open_session(cluster) as session:
        undisturbed = await ask_all(cluster, session)
        for victims in (["tokenizer0"], ["scheduler"], ["tokenizer0", "scheduler"]):
            asking = await on_their_way(cluster, session)
            for name in victims:
                cluster.kill(name)
            for answer, expected, number in zip(await asking, undisturbed, range(2 * len(KINDS)), strict=True):
                assert facts(answer) == facts(expected), (victims, list(KINDS)[number % len(KINDS)], number)
        await until(lambda: cluster.state().ready and set(busy(cluster).values()) == {0.0})
    died = {name: number - before[name] for name, number in restarts(cluster).items()}
    assert died == {"frontend0": 0, "tokenizer0": 2, "scheduler": 2, "worker0": 0}


def restarts(cluster: Cluster) -> dict[str, int]:
    return {process.name: process.restarts for process in cluster.state().processes}


def facts(answer: Answer) -> Any:
    """All but how the text was cut into pieces; numbers are those of other batches, so they are nearly the same."""
    choices = [
        (choice.text, choice.finish, choice.stop_reason, choice.tokens, [None if number is None else round(number, 2) for number in choice.logprobs])
        for choice in answer.choices
    ]
    return choices, answer.prompt_tokens, answer.completion_tokens
