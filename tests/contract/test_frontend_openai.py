"""The `openai` Python client, unmodified, against the frontend process."""

import base64
import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from messages.request import Generate, TextPrompt
from messages.text import Ended, FromTokenizer, Started, TextDelta, TokenLogprob
from tests.support.frontend_peers import MODEL, TIMEOUT, Message, running, say

VECTORS = {"A": [0.6, 0.8], "B": [1.0, 0.0]}
TOP = [(1, b"a", -0.5), (2, b"b", -1.5)]


def script(message: Message) -> Iterable[FromTokenizer]:
    """Says 'Hello world'; 'ab' with logprobs if they are asked for; ids or a text become their vector."""
    if isinstance(message, Generate) and message.pooling:
        text = message.prompt.text if isinstance(message.prompt, TextPrompt) else "B"
        yield Started(message.keys[0], 1)
        yield Ended(key=message.keys[0], finish="length", embedding=struct.pack("<2f", *VECTORS[text]))
    elif isinstance(message, Generate) and message.sampling.logprobs >= 0:
        tokens = [TokenLogprob(id_, piece, value, TOP[: message.sampling.logprobs]) for id_, piece, value in TOP]
        yield Started(message.keys[0], 1)
        for key in message.keys:
            yield TextDelta(key, "a", [7], tokens[:1])
            yield Ended(key=key, finish="length", text="b", tokens=1, logprobs=tokens[1:], completion_tokens=2)
    else:
        yield from say("Hello", " world")(message)


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with tempfile.TemporaryDirectory(prefix="pw-") as folder, running(Path(folder)) as (frontend, peers):
        peers.script = script
        with openai.OpenAI(base_url=f"{frontend.url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT) as made:
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


def test_chat_logprobs(client: openai.OpenAI) -> None:
    ask: Any = {"model": MODEL, "messages": MESSAGES, "logprobs": True, "top_logprobs": 2, "n": 2}
    answer = client.chat.completions.create(**ask)
    for choice in answer.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert [(entry.token, entry.logprob, entry.bytes) for entry in choice.logprobs.content] == [("a", -0.5, [97]), ("b", -1.5, [98])]
        assert [top.token for top in choice.logprobs.content[0].top_logprobs] == ["a", "b"]
    entries: dict[int, list[str]] = {0: [], 1: []}
    for chunk in client.chat.completions.create(**ask, stream=True):
        for choice in chunk.choices:
            entries[choice.index] += [entry.token for entry in (choice.logprobs and choice.logprobs.content) or []]
    assert entries == {0: ["a", "b"], 1: ["a", "b"]}


def test_completion_logprobs(client: openai.OpenAI) -> None:
    (choice,) = client.completions.create(model=MODEL, prompt="A", logprobs=1).choices
    assert choice.logprobs is not None
    assert (choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.text_offset) == (["a", "b"], [-0.5, -1.5], [0, 1])
    assert choice.logprobs.top_logprobs == [{"a": -0.5}, {"a": -0.5, "b": -1.5}]


@pytest.mark.parametrize("form", [{}, {"encoding_format": "float"}])
@pytest.mark.parametrize(
    ("given", "texts"), [("A", "A"), (["A", "B", "A"], "ABA"), ([1, 2], "B"), ([[1], [2, 3]], "BB")], ids=["text", "texts", "ids", "lists of ids"]
)
def test_embeddings(client: openai.OpenAI, given: Any, texts: str, form: Any) -> None:
    """Left alone, the client asks for base64 and makes numbers of it."""
    answer = client.embeddings.create(model=MODEL, input=given, user="somebody", **form)
    assert [entry.index for entry in answer.data] == list(range(len(texts)))
    for entry, text in zip(answer.data, texts, strict=True):
        assert entry.embedding == pytest.approx(VECTORS[text])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == len(texts)


def test_embeddings_as_base64(client: openai.OpenAI) -> None:
    answer = client.embeddings.create(model=MODEL, input="A", encoding_format="base64")
    encoded: Any = answer.data[0].embedding
    assert struct.unpack("<2f", base64.b64decode(encoded)) == pytest.approx(VECTORS["A"])


@pytest.mark.parametrize("form", [{"dimensions": 2}, {"encoding_format": "int8"}, {"input": []}], ids=str)
def test_embeddings_that_are_refused(client: openai.OpenAI, form: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(**{"model": MODEL, "input": "A"} | form)
    assert refused.value.param == next(iter(form))


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "pagewire"


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nope", messages=MESSAGES)
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, store=True)
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "store")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nope")
