"""Anthropic's Messages API: its own Python client, unmodified, and its shapes, against the frontend process."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import msgspec
import pydantic
import pytest

from messages.request import Cancel, Generate
from messages.text import Ended, Problem
from tests.support.frontend_peers import MODEL, TIMEOUT, Frontend, Peers, events, say, silent
from tests.support.utterances import CALLS, THOUGHT, utter

Pair = tuple[Frontend, Peers]
MESSAGES = "/v1/messages"
TOOLS: list[Any] = [
    {"name": "add", "description": "Adds.", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    {"name": "now", "input_schema": {"type": "object"}},
]
ASK: dict[str, Any] = {"model": MODEL, "max_tokens": 500, "messages": [{"role": "user", "content": "A"}]}


FORMAT: Any = {"format": {"type": "json_schema", "schema": {"type": "object"}}}


class City(pydantic.BaseModel):
    name: str


@pytest.fixture(scope="module")
def client(reading: Pair) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=reading[0].url, api_key="none", max_retries=0, timeout=TIMEOUT) as made:
        yield made


def told(message: Any) -> list[dict[str, Any]]:
    """The blocks without what is random."""
    return [{name: value for name, value in block.to_dict().items() if name not in ("id", "signature")} for block in message.content]


BLOCKS = [
    {"type": "thinking", "thinking": "Two."},
    {"type": "text", "text": "Sure."},
    {"type": "tool_use", "name": "add", "input": {"a": 1}},
    {"type": "tool_use", "name": "now", "input": {}},
]


def test_a_message_with_thinking_and_tools(reading: Pair, client: anthropic.Anthropic) -> None:
    reading[1].script = utter(THOUGHT + CALLS)
    made = client.messages.create(**ASK, tools=TOOLS, system="Be brief.", thinking={"type": "enabled", "budget_tokens": 1024})
    assert told(made) == BLOCKS
    assert (made.stop_reason, made.stop_sequence, made.role, made.type) == ("tool_use", None, "assistant", "message")
    assert (made.usage.input_tokens, made.usage.output_tokens) == (5, (len(THOUGHT + CALLS) + 2) // 3 + 1)
    asked = reading[1].expect(Generate)
    prompt = msgspec.msgpack.decode(msgspec.msgpack.encode(asked.prompt))
    assert prompt["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A"}]
    assert prompt["variables"] == {"enable_thinking": True}
    assert [tool["function"]["name"] for tool in prompt["tools"]] == ["add", "now"]


def test_an_answer_with_a_form(reading: Pair, client: anthropic.Anthropic) -> None:
    reading[1].script = utter('{"name": "Oslo"}')
    assert client.messages.parse(**ASK, output_format=City).parsed_output == City(name="Oslo")
    with client.messages.stream(**ASK, output_format=City) as stream:
        assert stream.get_final_message().parsed_output == City(name="Oslo")
    for _ in range(2):
        form = reading[1].expect(Generate).constraint
        assert (form.kind, form.param, form.place) == ("json_schema", "output_config.format", "output_config.format.schema")
        assert json.loads(form.text)["required"] == ["name"]
    reading[1].script = say("A")
    assert client.messages.count_tokens(model=MODEL, messages=ASK["messages"], output_config=FORMAT).input_tokens == 3


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_stream_helper_makes_the_whole(reading: Pair, client: anthropic.Anthropic, size: int) -> None:
    reading[1].script = utter(THOUGHT + CALLS, size=size)
    with client.messages.stream(**ASK, tools=TOOLS) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert told(final) == BLOCKS
    assert final.stop_reason == "tool_use"
    whole = client.messages.create(**ASK, tools=TOOLS)
    assert final.usage.to_dict() == whole.usage.to_dict()
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_the_events_of_a_stream(reading: Pair) -> None:
    frontend, peers = reading
    peers.script = say("Hello", " world", finish="length")
    status, headers, body = frontend.call("POST", MESSAGES, json.dumps({**ASK, "max_tokens": 2, "stream": True}).encode())
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    blocks = [block.split(b"\n", 1) for block in body.split(b"\n\n") if block]
    names = [name.decode().removeprefix("event: ") for name, _ in blocks]
    assert names == [
        "message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    data = events(b"\n\n".join(rest for _, rest in blocks))
    assert [event["type"] for event in data] == names
    assert data[0]["message"] | {"id": ""} == {
        "id": "", "type": "message", "role": "assistant", "model": MODEL, "content": [], "stop_reason": None, "stop_sequence": None,
        "usage": data[0]["message"]["usage"],
    }  # fmt: skip
    assert data[0]["message"]["usage"]["input_tokens"] == data[6]["usage"]["input_tokens"] > 0
    assert data[3] == {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}
    assert data[6]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}


@pytest.mark.parametrize(
    ("finish", "stop", "limit", "expected"),
    [
        ("stop", None, 9, ("end_turn", None)),
        ("stop", "END", 9, ("stop_sequence", "END")),
        ("stop", 5, 9, ("end_turn", None)),
        ("length", None, 1, ("max_tokens", None)),
        ("length", None, 9, ("model_context_window_exceeded", None)),
    ],
)
def test_why_it_ended(reading: Pair, finish: str, stop: Any, limit: int, expected: tuple[str, str | None]) -> None:
    frontend, peers = reading

    def script(message: Any) -> Iterator[Any]:
        for answer in say("A", finish=finish)(message):
            yield msgspec.structs.replace(answer, stop_reason=stop) if isinstance(answer, Ended) else answer

    peers.script = script
    status, _, body = frontend.post(MESSAGES, {**ASK, "max_tokens": limit, "stop_sequences": ["END"]})
    assert (status, body["stop_reason"], body["stop_sequence"]) == (200, *expected)


def test_a_conversation_travels(reading: Pair, client: anthropic.Anthropic) -> None:
    peers = reading[1]
    peers.script = say("Yes.")
    while not peers.received.empty():
        peers.received.get_nowait()
    metadata: Any = {"user_id": "x"}
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    hint: Any = {"cache_control": {"type": "ephemeral"}}
    system: Any = [{"type": "text", "text": "Be brief.", **hint}]
    talk: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "A", **hint}, {"type": "text", "text": "B"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "Sure."},
            {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "no"}], "is_error": True},
            {"type": "text", "text": "Again."},
        ]},
        {"role": "system", "content": "Now."},
    ]  # fmt: skip
    made = client.messages.create(
        model=MODEL, max_tokens=5, messages=talk, tools=TOOLS, system=system, metadata=metadata,
        tool_choice=choice, stop_sequences=["x"],
        extra_body={"temperature": 0.5, "top_k": 5},
    )  # fmt: skip
    assert [block.type for block in made.content] == ["text"]
    asked = peers.expect(Generate)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(asked.prompt))["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "A\nB"},
        {"role": "assistant", "content": "Sure.", "reasoning_content": "Hm.", "tool_calls": [
            {"id": "toolu_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]},
        {"role": "tool", "tool_call_id": "toolu_1", "name": "add", "content": "Error: no"},
        {"role": "user", "content": "Again."},
        {"role": "system", "content": "Now."},
    ]  # fmt: skip
    assert (asked.sampling.temperature, asked.sampling.top_k, asked.stop.strings, asked.stop.max_tokens) == (0.5, 5, ["x"], 5)


def test_one_call_alone(reading: Pair, client: anthropic.Anthropic) -> None:
    reading[1].script = utter(CALLS)
    made = client.messages.create(**ASK, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert told(made) == BLOCKS[1:3]
    assert reading[1].expect(Cancel).finished


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_a_call_that_must_come(reading: Pair, client: anthropic.Anthropic, choice: Any) -> None:
    reading[1].script = utter(CALLS)
    assert client.messages.create(**ASK, tools=TOOLS, tool_choice=choice).stop_reason == "tool_use"
    while (asked := reading[1].expect(Generate)).constraint is None:
        pass
    assert asked.constraint.kind == "lark"
    assert ("now" in asked.constraint.text) == (choice["type"] == "any")


@pytest.mark.parametrize(
    "arguments", ['{"a": x}', r'{"a": "\ud83d"}', '{"a": NaN}', '{"a": 1e999}'], ids=["no value", "half a pair", "no number", "too large"]
)
def test_arguments_that_are_no_json_are_given_as_they_are(reading: Pair, arguments: str) -> None:
    frontend, peers = reading
    peers.script = utter(f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call>')
    status, _, body = frontend.post(MESSAGES, {**ASK, "tools": TOOLS})
    assert status == 200, body
    assert body["content"][0]["input"] == {"malformed": arguments}


def test_count_tokens(reading: Pair, client: anthropic.Anthropic) -> None:
    reading[1].script = say()
    assert client.messages.count_tokens(model=MODEL, messages=ASK["messages"], tools=TOOLS).input_tokens == 3


def test_the_clients_errors(reading: Pair, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.messages.create(**{**ASK, "model": "nope"})
    body: Any = missing.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")

    def full(message: Any) -> Iterator[Any]:
        yield Ended(key=message.keys[0], problem=Problem(status=429, code="queue_full", message="full"), refused=True)

    reading[1].script = full
    with pytest.raises(anthropic.RateLimitError):
        client.messages.create(**ASK)


def test_an_error_in_the_middle_of_a_stream(reading: Pair, client: anthropic.Anthropic) -> None:
    def script(message: Any) -> Iterator[Any]:
        if isinstance(message, Generate):
            yield from list(say("A")(message))[:2]
            yield Ended(key=message.keys[0], problem=Problem(status=500, code="step_failed", message="It failed."))

    reading[1].script = script
    with pytest.raises(anthropic.APIStatusError, match="It failed"), client.messages.stream(**ASK) as stream:
        list(stream)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"stop": ["x"]}, "stop"),
        ({"tool_choice": {"type": "tool", "name": "sub"}}, "tool_choice"),
        ({"tool_choice": {"type": "auto", "name": "add"}}, "tool_choice"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"output_config": {"effort": "low"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "text"}}}, "output_config.format"),
        ({"output_config": FORMAT}, "output_config.format"),
        ({"output_config": FORMAT, "tools": [], "thinking": {"type": "adaptive"}}, "thinking"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "a", "input_schema": {"type": "object", "properties": {"x": 5}}}]}, "tools[0].input_schema.properties.x"),
        ({"tools": TOOLS + TOOLS}, "tools[2].name"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"messages": [{"role": 5, "content": "A"}]}, "messages[0].role"),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"messages": [{"role": "tool", "content": "A"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "messages[0].content[0]"),
        ({"messages": [*ASK["messages"], {"role": "assistant", "content": "("}]}, "messages"),
    ],
)
def test_what_is_refused(reading: Pair, fields: dict[str, Any], param: str) -> None:
    frontend, peers = reading
    peers.script = silent
    status, _, body = frontend.post(MESSAGES, {**ASK, "tools": TOOLS, **fields})
    assert (status, body["type"], body["error"]["type"], body["error"]["param"]) == (400, "error", "invalid_request_error", param), body


def test_other_errors_have_the_shape_too(reading: Pair) -> None:
    status, _, body = reading[0].post(MESSAGES, b"{")
    assert (status, body["type"]) == (400, "error")
    status, _, raw = reading[0].call("GET", MESSAGES)
    assert (status, json.loads(raw)["type"]) == (405, "error")
