"""Real-world failures of limits, empty prompts and bad bodies against the whole cluster: each test names what went wrong elsewhere."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.asking import ask, complete, edited, post, stream
from tests.support.cluster import Cluster, running_cluster
from tests.support.figures import idle_figures

CONTEXT = 2048
A = 64


@pytest.mark.parametrize("max_tokens", [1, 5, None])
async def test_c26_prompts_just_inside_the_context(dice: Cluster, max_tokens: int | None) -> None:
    for room in (1, 2):
        for ask_ in (whole, streamed):
            finish, tokens = await ask_(dice, prompt=[A] * (CONTEXT - room), max_tokens=max_tokens, ignore_eos=True, temperature=0)
            assert (finish, tokens) == ("length", min(room, 16 if max_tokens is None else max_tokens))


async def whole(cluster: Cluster, **body: Any) -> tuple[str, int]:
    answer = await complete(cluster, **body)
    return answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]


async def streamed(cluster: Cluster, **body: Any) -> tuple[str, int]:
    events = await stream(cluster, "/v1/completions", stream_options={"include_usage": True}, **body)
    return events[-2]["choices"][0]["finish_reason"], events[-1]["usage"]["completion_tokens"]


@pytest.mark.parametrize("length", [CONTEXT, CONTEXT + 1, 3 * CONTEXT])
async def test_c26_prompts_that_do_not_fit(dice: Cluster, length: int) -> None:
    for path, prompt in (("/v1/completions", {"prompt": [A] * length}), ("/v1/chat/completions", {"messages": [user("a" * (length - 4))]})):
        for extra in ({}, {"max_tokens": 1}, {"stream": True}):
            async with asyncio.timeout(30):
                status, answer = await ask(dice, path, **prompt, **extra)
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
            assert str(CONTEXT) in answer["error"]["message"]
            assert str(length) in answer["error"]["message"] or length > CONTEXT + 1
    answers = await asyncio.gather(*(ask(dice, "/v1/completions", prompt=[A] * length) for _ in range(20)))
    assert [status for status, _ in answers] == [400] * 20
    await complete(dice, prompt="A", max_tokens=1)
    assert not (await idle_figures(dice)).gauges["waiting"]


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


async def empty_prompts(cluster: Cluster, bos: bool) -> None:
    running = [asyncio.create_task(complete(cluster, prompt="A", max_tokens=60, ignore_eos=True)) for _ in range(10)]
    for prompt in ("", [""], ["A", ""]):
        status, answer = await ask(cluster, "/v1/completions", prompt=prompt, max_tokens=2)
        assert status == (200 if bos else 400)
        if bos and prompt == "":
            assert answer["usage"]["prompt_tokens"] == 1
        assert bos or answer["error"]["code"] == "empty_prompt"
    bodies: list[dict[str, Any]] = [{"prompt": []}, {"prompt": [[]]}, {}, {"prompt": None}]
    for body in bodies:
        status, answer = await ask(cluster, "/v1/completions", **body)
        assert (status, answer["error"]["param"]) == (400, "prompt")
    status, _ = await ask(cluster, "/v1/chat/completions", messages=[user("")], max_tokens=2)
    assert status == 200
    assert {answer["usage"]["completion_tokens"] for answer in await asyncio.gather(*running)} == {60}


async def test_c28_empty_prompts_with_bos(dice: Cluster) -> None:
    await empty_prompts(dice, bos=True)


@pytest.mark.slow
async def test_c28_empty_prompts_without_bos(models: Path, tmp_path: Path) -> None:
    folder = edited(models, "dice-byte", tmp_path, tokenizer_config={"add_bos_token": False})
    with running_cluster(folder, "--threads", "1") as cluster:
        await empty_prompts(cluster, bos=False)


GOOD = b'{"prompt": "A", "max_tokens": 1}'
BODIES: dict[str, tuple[bytes, int]] = {
    "empty": (b"", 400),
    "half": (b"{:", 400),
    "list": (b"[]", 400),
    "number": (b"5", 400),
    "truncated": (b'{"prompt": "A', 400),
    "gbk": ('{"prompt": "你好"}'.encode("gbk"), 400),
    "bom": (b"\xef\xbb\xbf" + GOOD, 400),
    "lone surrogate": (b'{"prompt": "\\ud800", "max_tokens": 1}', 400),
    "pair": (b'{"prompt": "\\ud83e\\udee0", "max_tokens": 1}', 200),
    "nul": (b'{"prompt": "A\\u0000", "max_tokens": 1}', 200),
    "deep": (b'{"prompt": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400),
    "deep objects": (b'{"metadata": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001, 400),
    "twice": (b'{"prompt": 5, "prompt": "A", "max_tokens": 1}', 200),
    "nan": (b'{"prompt": "A", "temperature": NaN}', 400),
    "infinity": (b'{"prompt": "A", "temperature": 1e999}', 400),
    "huge number": (b'{"prompt": "A", "seed": ' + b"9" * 5000 + b"}", 400),
    "huge exponent": (b'{"prompt": "A", "n": 1e400}', 400),
    "unknown field": (b'{"prompt": "A", "prompts": "B"}', 400),
}
FIELDS: dict[str, list[Any]] = {
    "prompt": [5, True, {}, [{}], [[1.5]], [None], ["a", 1], [1, "a"]],
    "max_tokens": ["1", 1.5, -1, [], {}, True],
    "temperature": ["1", [], {}, -1, 101, True],
    "top_p": ["1", 0, 2, []],
    "top_k": ["1", 1.5, -2],
    "n": ["1", 0, 1.5, 65],
    "stream": ["true", 1, []],
    "stop": [5, [5], [""], "", ["a"] * 17, {}],
    "logprobs": ["1", -1, 21, True],
    "seed": ["1", 0.5],
    "logit_bias": [[], "a", {"a": 1}, {"1": "b"}, {"1": 101}, {"-1": 1}, {str(2**40): 1}],
    "min_tokens": ["1", -1, 1.5],
    "allowed_token_ids": ["a", [], ["a"], [-1], [2**31]],
    "bad_words": ["a", [5], [""], {}],
    "stop_token_ids": ["a", ["a"], [-1]],
    "priority": ["a", 101],
    "cache_salt": [5, ""],
    "echo": ["a", 1],
    "ignore_eos": ["a", 1],
    "presence_penalty": ["a", 3],
    "repetition_penalty": ["a", 0],
    "min_p": ["a", -1, 2],
    "truncate_prompt_tokens": ["a", 0, -2, 1.5],
    "prompt_logprobs": ["a", -1, 21],
    "return_token_ids": ["a", 1],
}


def check_error(answer: dict[str, Any]) -> dict[str, Any]:
    error: dict[str, Any] = answer["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert not any(word in error["message"] for word in ("Traceback", ".py", "msgspec", "/home", "File "))
    return error


async def test_c55_bad_bodies(dice: Cluster) -> None:
    for name, (body, wanted) in BODIES.items():
        for path in ("/v1/completions", "/v1/chat/completions", "/tokenize"):
            for extra in (body, body.replace(b"{", b'{"stream": true, ', 1) if path != "/tokenize" else body):
                status, answer = await post(dice, path, extra) if b'"stream"' not in extra or wanted == 400 else (wanted, {})
                if path == "/v1/completions":
                    assert status == wanted, name
                assert status in (200, 400), name
                assert status == 200 or check_error(answer), name
    await complete(dice, prompt="A", max_tokens=1)


@pytest.mark.parametrize("field", FIELDS)
async def test_c55_wrong_types_name_their_field(dice: Cluster, field: str) -> None:
    for value in FIELDS[field]:
        status, answer = await ask(dice, "/v1/completions", **{"prompt": "A", "max_tokens": 1} | {field: value})
        assert (status, check_error(answer)["param"]) == (400, field), value
    await complete(dice, prompt="A", max_tokens=1)


async def test_c55_unknown_models_paths_and_methods(dice: Cluster) -> None:
    for streamed_ in (False, True):
        status, answer = await ask(dice, "/v1/completions", prompt="A", model="nope", stream=streamed_)
        error = check_error(answer)
        assert (status, error["param"], error["code"]) == (404, "model", "model_not_found")
    status, _ = await post(dice, "/v1/completions", GOOD)  # without a model the served one answers
    assert status == 200
    async with aiohttp.ClientSession(dice.url) as session:
        for method, path, wanted in (
            ("GET", "/v1/completions", 405),
            ("PUT", "/v1/chat/completions", 405),
            ("POST", "/v1/models", 405),
            ("GET", "/nowhere", 404),
            ("POST", "/v1/nowhere", 404),
            ("GET", "/v1/models/nope", 404),
            ("GET", "/v1/%00%ff", 404),
        ):
            async with session.request(method, path) as response:
                assert response.status == wanted
                assert response.headers["Content-Type"].startswith("application/json")
                check_error(json.loads(await response.text()))
