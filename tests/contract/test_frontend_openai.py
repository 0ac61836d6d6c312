"""The `openai` Python client, unmodified, against the frontend process."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.support.frontend_peers import MODEL, running, say


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with tempfile.TemporaryDirectory(prefix="pw-") as folder, running(Path(folder)) as (frontend, peers):
        peers.script = say("Hello", " world")
        with openai.OpenAI(base_url=f"{frontend.url}/v1", api_key="none", max_retries=0, timeout=10) as made:
            yield made


MESSAGES: Any = [{"role": "user", "content": "A"}]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2, stop=["x"], temperature=0)
    assert [choice.message.content for choice in answer.choices] == ["Hello world"] * 2
    assert answer.usage is not None
    assert answer.usage.total_tokens == 9
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello world"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 2


def test_the_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
        final = stream.get_final_completion()
    assert (final.choices[0].message.role, final.choices[0].message.content) == ("assistant", "Hello world")


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=["A", "B"], max_tokens=5, extra_body={"top_k": 5, "min_p": 0.1})
    assert [(choice.index, choice.text, choice.finish_reason) for choice in answer.choices] == [(i, "Hello world", "stop") for i in (0, 1)]
    parts = [chunk.choices[0].text for chunk in client.completions.create(model=MODEL, prompt="A", stream=True)]
    assert "".join(parts) == "Hello world"


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "pagewire"


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=MESSAGES)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format={"type": "json_object"})
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "response_format")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")
