"""Real-world failures (text and tokens) against the whole cluster: each test names what went wrong elsewhere."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.asking import ask, edited, stream
from tests.support.cluster import Cluster, running_cluster
from tests.support.figures import scheduler_state


async def test_c13_spaces_of_a_sentencepiece_tokenizer(spm: Cluster) -> None:
    jobs = [stream(spm, "/v1/completions", prompt="the", temperature=0, max_tokens=10) for _ in range(2)]
    for events in await asyncio.gather(*jobs):
        assert "".join(event["choices"][0]["text"] for event in events) == " Hello world cat"
    status, answer = await ask(spm, "/v1/completions", prompt="the", temperature=0, max_tokens=10)
    assert (status, answer["choices"][0]["text"]) == (200, " Hello world cat")


async def test_c09_bos_is_never_doubled(chain: Cluster) -> None:
    _, chat = await ask(chain, "/tokenize", messages=[{"role": "user", "content": "A"}])
    assert chat["tokens"] == [292, 295, 32, 294, 296]
    _, plain = await ask(chain, "/tokenize", prompt="A")
    assert plain["tokens"] == [292, 32]
    _, bare = await ask(chain, "/tokenize", prompt="A", add_special_tokens=False)
    assert bare["tokens"] == [32]
    _, own = await ask(chain, "/tokenize", prompt="<|bos|>A")
    assert own["tokens"] == [292, 32]
    _, answer = await ask(chain, "/v1/chat/completions", messages=[{"role": "user", "content": "A"}], max_tokens=1)
    assert answer["usage"]["prompt_tokens"] == 5
    _, text = await ask(chain, "/detokenize", tokens=[292, 32])
    assert text["prompt"] == "<|bos|>A"


@pytest.mark.parametrize("role", ["tool", "robot", None])
async def test_c11_a_template_that_refuses_is_a_400_with_its_sentence(chain: Cluster, role: str | None) -> None:
    message = {"content": "A"} | ({"role": role} if role else {})
    status, answer = await ask(chain, "/v1/chat/completions", messages=[message])
    assert status == 400
    assert role is None or f"role not supported: {role}" in answer["error"]["message"]


async def test_c03_the_anatomy_of_a_chat_stream(chain: Cluster) -> None:
    without: list[dict[str, Any]] = [{}, {"stream_options": None}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}]
    for options in without:
        events = await stream(
            chain, "/v1/chat/completions", messages=[{"role": "user", "content": "A"}], n=2, max_tokens=4, ignore_eos=True, **options
        )
        assert all(event["object"] == "chat.completion.chunk" and not event.get("usage") for event in events)
        for index in (0, 1):
            deltas = [event["choices"][0]["delta"] for event in events if event["choices"][0]["index"] == index]
            assert deltas[0]["role"] == "assistant"
            assert all("role" not in delta for delta in deltas[1:])
    events = await stream(
        chain,
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "A"}],
        n=2,
        max_tokens=4,
        ignore_eos=True,
        stream_options={"include_usage": True},
    )
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 8
    assert not any(event.get("usage") for event in events[:-1])


async def test_c08_stop_given_as_the_text_of_a_special_token(models: Path, tmp_path: Path) -> None:
    folder = edited(models, "chain-byte", tmp_path, generation_config=None)
    with running_cluster(folder) as cluster:
        chat: dict[str, Any] = {"messages": [{"role": "user", "content": "A"}], "temperature": 0, "max_tokens": 8}
        for extra in ({"stop": ["<|eot|>"]}, {"stop_token_ids": [294]}):
            _, answer = await ask(cluster, "/v1/chat/completions", **chat, **extra)
            assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == (" the cat", "stop")
        _, answer = await ask(cluster, "/v1/chat/completions", **chat)
        assert answer["choices"][0]["message"]["content"] == " the cat dog one two three"


async def test_c11_a_model_without_a_template(models: Path, tmp_path: Path) -> None:
    folder = edited(models, "chain-byte", tmp_path, tokenizer_config={"chat_template": None})
    with running_cluster(folder) as cluster:
        status, answer = await ask(cluster, "/v1/chat/completions", messages=[{"role": "user", "content": "A"}])
        assert status == 400
        assert "--chat-template" in answer["error"]["message"]
        status, answer = await ask(cluster, "/v1/completions", prompt="A", temperature=0, max_tokens=3)
        assert (status, answer["choices"][0]["text"]) == (200, "Hello worldEND")


@pytest.mark.slow
async def test_c11_a_template_in_a_file_of_its_own(models: Path, tmp_path: Path) -> None:
    """A good one is used; one with a syntax error ends the start with a sentence that says where."""
    settings = json.loads((models / "chain-byte" / "tokenizer_config.json").read_text())
    folder = edited(models, "chain-byte", tmp_path, tokenizer_config={"chat_template": None})
    (folder / "chat_template.jinja").write_text(settings["chat_template"])
    with running_cluster(folder) as cluster:
        _, answer = await ask(cluster, "/v1/chat/completions", messages=[{"role": "user", "content": "A"}], temperature=0)
        assert answer["choices"][0]["message"]["content"] == " the cat"
    (folder / "chat_template.jinja").write_text("{{ bos_token }}\n{% if %}")
    with pytest.raises(AssertionError, match=r"syntax error in line 2"), running_cluster(folder):
        pass


async def test_c32_two_clients_with_the_same_request_id(chain: Cluster) -> None:
    async def one(prompt: str) -> str:
        body = {"model": chain.model, "prompt": prompt, "temperature": 0, "max_tokens": 2}
        async with (
            aiohttp.ClientSession(chain.url) as session,
            session.post("/v1/completions", json=body, headers={"X-Request-Id": "x"}) as response,
        ):
            text: str = (await response.json())["choices"][0]["text"]
            return text

    texts = await asyncio.gather(*(one(prompt) for _ in range(20) for prompt in "AB"))
    assert texts[::2] == ["Hello world"] * 20
    assert len(set(texts[1::2])) == 1


async def read_all(session: aiohttp.ClientSession, body: dict[str, Any]) -> None:
    async with session.post("/v1/completions", json=body) as response:
        await response.read()


@pytest.fixture(scope="module")
def narrow(models: Path) -> Iterator[Cluster]:
    with running_cluster(models / "dice-byte", "--max-slots", "4") as running:
        yield running


@pytest.mark.parametrize("streamed", [True, False])
async def test_c30_clients_that_go_away_free_everything(narrow: Cluster, streamed: bool) -> None:
    body = {"model": narrow.model, "prompt": "A", "max_tokens": 1500, "ignore_eos": True, "stream": streamed}
    for _ in range(3):
        before = (await scheduler_state(narrow)).counters["accepted"]
        async with aiohttp.ClientSession(narrow.url) as session:
            jobs = [asyncio.create_task(read_all(session, body)) for _ in range(12)]
            async with asyncio.timeout(30):
                while (await scheduler_state(narrow)).counters["accepted"] < before + 12:
                    await asyncio.sleep(0.05)
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)
        async with asyncio.timeout(30):
            while (now := (await scheduler_state(narrow)).gauges)["running"] or now["waiting"] or now["blocks_used"] or now["slots_used"]:
                await asyncio.sleep(0.05)
    status, answer = await ask(narrow, "/v1/completions", prompt="A", max_tokens=3, ignore_eos=True)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 3)
