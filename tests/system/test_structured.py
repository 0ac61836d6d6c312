"""Answers that must have a form, through the whole cluster: they have it, whatever else is asked for and whatever happens meanwhile."""

import asyncio
import contextlib
import json
import re
import time
from typing import Any

import aiohttp
import jsonschema
import openai
import pytest

from tests.support.asking import ask
from tests.support.cluster import Cluster
from tests.support.completions import Answer, complete, events, open_session, stream
from tests.support.figures import busy, caught
from tests.support.schemas import SCHEMAS, arrays, check, objects
from tests.support.waiting import until
from tokenizer_proc import grammar_child

PROMPT = [65] * 20
RANDOM: dict[str, Any] = {"temperature": 1.0, "ignore_eos": False, "logprobs": None, "max_tokens": 90}
SMALL = objects(
    name={"type": "string", "maxLength": 6},
    level={"enum": ["low", "high", 3]},
    tags=arrays({"type": "boolean"}, 1, 2),
    more={"type": ["null", "integer"]},
)
AS_FORMAT = {"type": "json_schema", "json_schema": {"name": "small", "strict": True, "schema": SMALL}}
PATHOLOGICAL = {"allOf": [{"anyOf": [objects([], **{name: {"type": "integer"}}) for name in "ab"]} for _ in range(12)]}
"""What llguidance works on for longer than it may."""
ENORMOUS = {"type": "object", "properties": {f"property {number}": {"type": "string"} for number in range(4000)}}
CI_SCHEMAS = ("person", "enum", "tree", "uuid", "list of shapes")
SEEDS = 3
TRIES = 5


def valid(text: str) -> None:
    jsonschema.validate(json.loads(text), SMALL)


async def test_each_kind_of_form_and_all_that_goes_with_it(dice: Cluster) -> None:
    """A model that says anything at all says what is asked for. Streamed and whole are the same."""
    kinds: dict[str, dict[str, Any]] = {
        "schema": {"response_format": AS_FORMAT, "seed": 1},
        "choices of it": {"response_format": AS_FORMAT, "seed": 2, "n": 3},
        "greedy": {"response_format": AS_FORMAT, "temperature": 0},
        "logprobs": {"response_format": AS_FORMAT, "seed": 3, "logprobs": 2},
        "penalties": {"guided_json": SMALL, "seed": 4, "repetition_penalty": 1.5, "presence_penalty": 1.0},
        "tokens to have and to avoid": {"guided_json": SMALL, "seed": 5, "logit_bias": {"64": 5.0, "66": -100}, "bad_words": ["a"], "min_tokens": 60},
        "tokens that no such answer has": {"guided_json": SMALL, "seed": 5, "allowed_token_ids": [65, 66]},
        "regex": {"guided_regex": "[a-c]{3}(-[0-9]{2})+", "seed": 6},
        "choice": {"guided_choice": ["one", "two", "three"], "seed": 7, "n": 2},
        "lark": {"guided_grammar": 'start: "go " %json {"type": "boolean"}', "seed": 8},
        "any object": {"structured_outputs": {"json_object": True}, "seed": 9, "max_tokens": 30},
        "cut off": {"guided_regex": "[a-z]{90}", "seed": 10, "max_tokens": 20},
        "stop string": {"guided_regex": "[a-c]{80}", "seed": 11, "stop": ["a"]},
        "none": {"seed": 12, "max_tokens": 30},
    }
    async with open_session(dice) as session:
        whole, streamed = await asyncio.gather(*(
            asyncio.gather(*(way(session, dice, PROMPT, **RANDOM | options) for options in kinds.values())) for way in (complete, stream)
        ))  # fmt: skip
    said = dict(zip(kinds, whole, strict=True))
    assert [texts(answer) for answer in whole] == [texts(answer) for answer in streamed]
    for name, answer in said.items():
        for choice in answer.choices:
            if "response_format" in kinds[name] or "guided_json" in kinds[name]:
                assert choice.finish == "stop", name
                valid(choice.text)
    assert len({choice.text for choice in said["choices of it"].choices}) > 1
    assert len(said["logprobs"].choices[0].logprobs) == len(said["logprobs"].choices[0].tokens) > 5
    assert min(said["logprobs"].choices[0].logprobs) < -10  # of the model, which would have said something else
    assert re.fullmatch("[a-c]{3}(-[0-9]{2})+", said["regex"].choices[0].text)
    assert {choice.text for choice in said["choice"].choices} <= {"one", "two", "three"}
    assert said["lark"].choices[0].text in ("go true", "go false")
    assert (said["cut off"].choices[0].finish, said["cut off"].completion_tokens) == ("length", 20)
    assert re.fullmatch("[a-z]+", said["cut off"].choices[0].text)
    assert said["stop string"].choices[0].stop_reason == "a"
    assert re.fullmatch("[bc]*", said["stop string"].choices[0].text)


def texts(answer: Answer) -> list[tuple[str, str | None]]:
    return [(choice.text, choice.finish) for choice in answer.choices]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}}, "Unimplemented keys"),
        ({"guided_regex": "(a"}, "unclosed group"),
        ({"guided_grammar": "start: b"}, "unknown name"),
        ({"structured_outputs": {"json": {"$ref": "#"}}}, "nothing can be said"),
    ],
    ids=str,
)
async def test_a_form_that_is_no_use_is_refused_by_name(dice: Cluster, fields: dict[str, Any], why: str) -> None:
    for streamed in (False, True):
        status, body = await ask(dice, "/v1/completions", prompt="A", stream=streamed, **fields)
        error = body["error"]
        assert (status, error["type"], error["code"], error["param"]) == (400, "invalid_request_error", "invalid_grammar", next(iter(fields)))
        assert why in error["message"]


async def test_rows_that_are_preempted_go_on_in_their_grammars(tiny: Cluster) -> None:
    before = preemptions(tiny)
    options = [RANDOM | {"seed": seed, "guided_regex": "([a-f]{2}[0-9] ){9}", "max_tokens": 60} for seed in range(6)]
    async with open_session(tiny) as session:
        alone = [await complete(session, tiny, PROMPT[:4], **one) for one in options]
        async with asyncio.timeout(60):
            while preemptions(tiny) == before:  # where the machine is slow they may come one after the other
                together = await asyncio.gather(*(complete(session, tiny, PROMPT[:4], **one) for one in options))
                assert [texts(answer) for answer in together] == [texts(answer) for answer in alone]
    assert all(re.fullmatch("([a-f]{2}[0-9] ){9}", answer.choices[0].text) for answer in alone)


def preemptions(cluster: Cluster) -> float:
    return next(process.counters.get("preemptions", 0.0) for process in cluster.state().processes if process.name == "scheduler")


async def test_a_worker_that_dies_compiles_them_again(dice: Cluster) -> None:
    options = [RANDOM | {"seed": seed, "guided_regex": "([a-f]{2}[0-9] ){60}", "max_tokens": 150} for seed in range(4)]
    async with open_session(dice) as session:
        undisturbed = await asyncio.gather(*(complete(session, dice, PROMPT, **one) for one in options))
        for _ in range(TRIES):
            asking = asyncio.gather(*(complete(session, dice, PROMPT, **one) for one in options))
            async with contextlib.aclosing(events(session, dice, PROMPT, **options[0])) as same:
                await anext(same)
                if there := await caught(dice, len(options)):
                    dice.kill("worker0")
            assert [texts(answer) for answer in await asking] == [texts(answer) for answer in undisturbed]
            if there:
                break
        else:
            raise AssertionError("they have never run all at once")
    await until(lambda: dice.state().ready and set(busy(dice).values()) == {0.0}, 60)


@pytest.mark.slow
@pytest.mark.parametrize("schema", [PATHOLOGICAL, ENORMOUS], ids=["pathological", "enormous"])
async def test_a_form_that_takes_long_is_refused_in_time_and_delays_no_stream(dice: Cluster, schema: dict[str, Any]) -> None:
    """The longest pause of a stream is under 200 ms, or not much longer than that of a stream just after with nothing beside it (the machine has
    others too), in one of a few tries. The form takes seconds."""
    pauses = []
    for attempt in range(4):
        began = time.monotonic()
        asking = asyncio.create_task(ask(dice, "/v1/completions", prompt="A", guided_json=schema | {"title": str(attempt)}))
        beside = await longest_pause(dice, asking)
        status, body = await asking
        took = time.monotonic() - began
        if status == 503:  # of a core that others have, a trial gets next to nothing
            assert body["error"]["code"] == "overloaded"
            assert took > grammar_child.PATIENCE_SECONDS
        else:
            assert (status, body["error"]["code"]) == (400, "invalid_grammar")
        assert took < grammar_child.PATIENCE_SECONDS + 30
        alone = await longest_pause(dice, asyncio.create_task(asyncio.sleep(took)))
        pauses.append((beside, alone))
        if beside < max(0.2, 2 * alone):
            return
    raise AssertionError(f"pauses of {pauses}")


async def longest_pause(cluster: Cluster, meanwhile: "asyncio.Task[Any]") -> float:
    """Of streams, one after another, in seconds."""
    worst = 0.0
    async with open_session(cluster) as session:
        while not meanwhile.done():
            last = None
            async for _ in events(session, cluster, PROMPT, max_tokens=100, logprobs=None, temperature=1.0):
                now = time.monotonic()
                worst, last = max(worst, now - (last or now)), now
    return worst


async def say(client: openai.AsyncOpenAI, cluster: Cluster, name: str, seed: int, most: int) -> tuple[str, str]:
    """The answer's finish reason and its text, which is checked when it came to its end."""
    answer = await client.chat.completions.create(
        model=cluster.model, messages=[{"role": "user", "content": f"Give me an example of: {name}. Answer in JSON."}], seed=seed, temperature=0.7,
        max_tokens=most, response_format={"type": "json_schema", "json_schema": {"name": "example", "schema": SCHEMAS[name], "strict": True}},
    )  # fmt: skip
    choice = answer.choices[0]
    assert choice.message.content is not None
    if choice.finish_reason == "stop":
        check(choice.message.content, name)
    return choice.finish_reason, choice.message.content


async def test_the_default_model_keeps_to_schemas(smol: Cluster) -> None:
    async with openai.AsyncOpenAI(base_url=f"{smol.url}/v1", api_key="none") as client:
        ends = [finish for finish, _ in await asyncio.gather(*(say(client, smol, name, 1, 80) for name in CI_SCHEMAS))]
    assert ends.count("stop") >= 3, ends


@pytest.mark.slow
@pytest.mark.timeout(1500)
async def test_the_default_model_keeps_to_fifty_schemas(smol: Cluster) -> None:
    """Three seeds each. What is cut off by max_tokens may be anything; most is not."""
    room = asyncio.Semaphore(32)

    async def one(name: str, seed: int) -> tuple[str, str]:
        async with room:
            return await say(client, smol, name, seed, 200)

    async with openai.AsyncOpenAI(base_url=f"{smol.url}/v1", api_key="none", timeout=1400, max_retries=0) as client:
        said = await asyncio.gather(*(one(name, seed) for name in SCHEMAS for seed in range(SEEDS)))
    ends = [finish for finish, _ in said]
    print(f"{ends.count('stop')} of {len(ends)} came to their end, and all of these are valid; the others:")
    for place, (finish, text) in enumerate(said):
        if finish != "stop":
            print(f"{list(SCHEMAS)[place // SEEDS]}, seed {place % SEEDS}: {text!r}")
    assert len(ends) == 50 * SEEDS
    assert ends.count("stop") >= 0.8 * len(ends), ends


async def test_a_stream_of_the_sdk(smol: Cluster) -> None:
    async with openai.AsyncOpenAI(base_url=f"{smol.url}/v1", api_key="none") as client:
        events_ = await client.chat.completions.create(
            model=smol.model, messages=[{"role": "user", "content": "Yes or no?"}], stream=True, max_tokens=20,
            extra_body={"guided_choice": ["yes", "no"]},
        )  # fmt: skip
        said = [choice async for event in events_ for choice in event.choices]
    assert "".join(choice.delta.content or "" for choice in said) in ("yes", "no")
    assert said[-1].finish_reason == "stop"


async def test_many_forms_at_once_are_compiled_in_turn(dice: Cluster) -> None:
    async with aiohttp.ClientSession(dice.url) as session:
        answers = await asyncio.gather(*(
            complete(session, dice, PROMPT, **RANDOM | {"guided_regex": f"x{number}y[ab]{{3}}", "seed": number}) for number in range(24)
        ))  # fmt: skip
    for number, answer in enumerate(answers):
        assert re.fullmatch(f"x{number}y[ab]{{3}}", answer.choices[0].text)
