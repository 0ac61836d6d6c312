"""Tool calls and reasoning of chat answers over HTTP, with a tokenizer that says what the test wants."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import openai
import pytest

from messages.request import Cancel, Generate
from messages.text import Ended, FromTokenizer, Started, TextDelta
from tests.support.frontend_peers import MODEL, TIMEOUT, Frontend, Message, Peers, silent
from tests.support.utterances import CALLS, THOUGHT, utter

Pair = tuple[Frontend, Peers]
CHAT = "/v1/chat/completions"
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS, "strict": False}},
    {"type": "function", "function": {"name": "now"}},
]
MESSAGES: list[Any] = [{"role": "user", "content": "A"}]
ASK: dict[str, Any] = {"messages": MESSAGES, "tools": TOOLS}


@pytest.fixture
def client(reading: Pair) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{reading[0].url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT) as made:
        yield made


def together(events: list[Any], index: int = 0) -> tuple[dict[str, Any], str | None]:
    """The message that the deltas of a choice make, by the rules of OpenAI's stream, and its finish reason."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "reasoning": "", "tool_calls": []}
    finish = None
    for event in events:
        for choice in event["choices"] if event != "[DONE]" else []:
            if choice["index"] != index:
                continue
            finish = choice["finish_reason"] or finish
            for name in ("content", "reasoning_content", "reasoning"):
                message[name] += choice["delta"].get(name) or ""
            for delta in choice["delta"].get("tool_calls", []):
                if delta["index"] == len(message["tool_calls"]):
                    assert delta["id"].startswith("call_")
                    assert delta["type"] == "function"
                    message["tool_calls"].append({"name": delta["function"]["name"], "arguments": ""})
                else:
                    assert delta.keys() == {"index", "function"}
                    assert delta["function"].keys() == {"arguments"}
                message["tool_calls"][delta["index"]]["arguments"] += delta["function"]["arguments"]
    return message, finish


def plain(choice: Any) -> tuple[dict[str, Any], str | None]:
    """A whole choice in the same form."""
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", [])]
    texts = {name: message.get(name) or "" for name in ("content", "reasoning_content", "reasoning")}
    return {**texts, "tool_calls": calls}, choice["finish_reason"]


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_the_deltas_make_the_whole(reading: Pair, size: int, n: int) -> None:
    frontend, peers = reading
    peers.script = utter(THOUGHT + CALLS, size=size)
    ask = {**ASK, "n": n}
    _, _, whole = frontend.post(CHAT, ask)
    events = frontend.stream(CHAT, ask)
    calls = [{"name": "add", "arguments": '{"a": 1}'}, {"name": "now", "arguments": "{}"}]
    for index in range(n):
        expected = {"content": "Sure.", "reasoning_content": "Two.", "reasoning": "Two.", "tool_calls": calls}, "tool_calls"
        assert plain(whole["choices"][index]) == together(events, index) == expected
    assert len({call["id"] for choice in whole["choices"] for call in choice["message"]["tool_calls"]}) == 2 * n
    sent = [peers.expect(Generate) for _ in range(2)]
    assert set(sent[0].shown) == {"<tool_call>", "</tool_call>", "<think>", "</think>"}
    assert sent[0].opening == "<think>"
    assert [msgspec.msgpack.decode(tool)["function"] for tool in sent[0].prompt.tools] == [
        {"name": "add", "description": "Adds.", "parameters": PARAMETERS},
        {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
    ]


def test_usage_tells_the_tokens_of_the_reasoning(reading: Pair) -> None:
    frontend, peers = reading
    peers.script = utter(THOUGHT + "Yes.", size=1)
    _, _, whole = frontend.post(CHAT, {"messages": MESSAGES, "n": 2})
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2 * (len("<think>\nTwo.\n</think>"))}
    events = frontend.stream(CHAT, {"messages": MESSAGES, "n": 2, "stream_options": {"include_usage": True}})
    assert events[-2]["usage"] == whole["usage"]


def test_a_reasoning_that_the_prompt_has_opened(reading: Pair) -> None:
    frontend, peers = reading
    peers.script = utter("Two.\n</think>\n\nYes.", opened=True)
    ask = {"messages": MESSAGES}
    assert plain(frontend.post(CHAT, ask)[2]["choices"][0]) == together(frontend.stream(CHAT, ask))
    message, finish = together(frontend.stream(CHAT, ask))
    assert (message["reasoning_content"], message["content"], finish) == ("Two.", "Yes.", "stop")


@pytest.mark.parametrize("choice", ["none", None])
def test_no_calls_are_looked_for(reading: Pair, choice: str | None) -> None:
    frontend, peers = reading
    peers.script = utter(CALLS)
    ask = {"messages": MESSAGES} if choice is None else {**ASK, "tool_choice": choice}
    message, finish = together(frontend.stream(CHAT, ask))
    assert (message["content"], message["tool_calls"], finish) == (CALLS, [], "stop")


def test_a_call_that_is_cut_off(reading: Pair) -> None:
    frontend, peers = reading
    peers.script = utter('<tool_call>{"name": "add", "arguments": {"a"', finish="length")
    assert together(frontend.stream(CHAT, ASK)) == plain(frontend.post(CHAT, ASK)[2]["choices"][0])
    message, finish = together(frontend.stream(CHAT, ASK))
    assert (message["tool_calls"], finish) == ([{"name": "add", "arguments": '{"a"'}], "length")


def test_one_call_alone_ends_the_answer(reading: Pair) -> None:
    """The tokenizer is told that the answer is whole, and what it says behind it is for nobody."""
    frontend, peers = reading
    peers.script = utter(CALLS)
    ask = {**ASK, "parallel_tool_calls": False}
    expected = {"content": "Sure.", "reasoning_content": "", "reasoning": "", "tool_calls": [{"name": "add", "arguments": '{"a": 1}'}]}, "tool_calls"
    _, _, whole = frontend.post(CHAT, ask)
    assert plain(whole["choices"][0]) == together(frontend.stream(CHAT, ask)) == expected
    assert whole["usage"]["completion_tokens"] == (CALLS.index("1}") + 2 + 2) // 3
    assert peers.expect(Cancel).finished
    frontend.wait_metric("frontend_live_sequences", 0)


def test_the_reasoning_is_closed_when_its_budget_is_used_up(reading: Pair) -> None:
    """It is sent again with what is here and the closing text, and what comes of the first way after that is not taken."""
    frontend, peers = reading
    seen: list[Generate] = []

    def script(message: Message) -> Iterable[FromTokenizer]:
        if not isinstance(message, Generate):
            return
        seen.append(message)
        yield Started(message.keys[0], 5, True)
        if not message.resumed:
            yield from (TextDelta(message.keys[0], f"t{number} ", [number]) for number in range(20))
        else:
            yield TextDelta(message.keys[0], message.resumed[0].closing, [90, 91])
            yield TextDelta(message.keys[0], "Yes.", [92])
            yield Ended(key=message.keys[0], finish="stop", completion_tokens=9, tokens=1, ids=[2])

    peers.script = script
    ask = {"messages": MESSAGES, "thinking_budget": 5}
    _, _, whole = frontend.post(CHAT, ask)
    expected = {"content": "Yes.", "reasoning_content": "t0 t1 t2 t3 t4", "reasoning": "t0 t1 t2 t3 t4", "tool_calls": []}, "stop"
    assert plain(whole["choices"][0]) == expected
    assert together(frontend.stream(CHAT, ask)) == expected
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 7}
    assert [(given.resumed[0].closing, len(given.resumed[0].tokens) // 4) for given in seen[1::2]] == [("\n</think>\n\n", 5)] * 2
    assert seen[0].keys != seen[1].keys


@pytest.mark.parametrize(("effort", "thinks", "budget"), [("none", False, None), ("minimal", True, 512), ("high", True, None)])
def test_the_effort_of_reasoning(reading: Pair, effort: str, thinks: bool, budget: int | None) -> None:
    """With a limit the reasoning is closed at its end, and the request sent again."""
    frontend, peers = reading

    def script(message: Message) -> Iterator[Any]:
        if isinstance(message, Generate):
            yield Started(message.keys[0], 5, thinks)
            if message.resumed or budget is None:
                yield Ended(key=message.keys[0], finish="stop", completion_tokens=9, tokens=1, ids=[2])
            else:
                yield TextDelta(message.keys[0], "t", list(range(budget)))

    peers.script = script
    while not peers.received.empty():
        peers.received.get_nowait()
    assert frontend.post(CHAT, {"messages": MESSAGES, "reasoning_effort": effort})[0] == 200
    assert {name: msgspec.msgpack.decode(value) for name, value in peers.expect(Generate).prompt.variables.items()} == {"enable_thinking": thinks}
    if budget is not None:
        assert len(peers.expect(Generate).resumed[0].tokens) // 4 == budget


def test_logprobs_and_ids_are_of_the_whole_text(reading: Pair) -> None:
    frontend, peers = reading
    peers.script = utter(THOUGHT + CALLS)
    ask = {**ASK, "logprobs": True, "return_token_ids": True}
    whole = frontend.post(CHAT, ask)[2]["choices"][0]
    choices = [choice for event in frontend.stream(CHAT, ask)[:-1] for choice in event["choices"]]
    entries = [entry for choice in choices for entry in (choice["logprobs"] or {}).get("content", [])]
    assert "".join(entry["token"] for entry in entries) == THOUGHT + CALLS
    assert entries == whole["logprobs"]["content"]
    assert [id_ for choice in choices for id_ in choice.get("token_ids", [])] == whole["token_ids"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "add"}}, "tool_choice"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_object"}, "tool_choice": "none", "thinking_budget": 5}, "thinking_budget"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"enum": ["é" * 100_000]}}}], "tool_choice": "required"}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]}, "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]}, "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"required": 5}}}]}, "tools[0].function.parameters.required"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"properties": []}}}]}, "tools[0].function.parameters.properties"),
        ({"tools": [*TOOLS, {"type": "function", "function": {"name": "a", "parameters": {"properties": {"x": {"anyOf": [{}, {"items": 5}]}}}}}]},
         "tools[2].function.parameters.properties.x.anyOf[1].items"),
        ({"tools": [{"type": "function", "function": {"name": "a", "strict": 1}}]}, "tools[0].function.strict"),
        ({"tools": [{"type": "function", "function": {"name": "a", "extra": 1}}]}, "tools[0].function.extra"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": {"maximum": 10**30}}}]}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": TOOLS + TOOLS}, "tools[2].function.name"),
        ({"reasoning_effort": "xhigh"}, "reasoning_effort"),
        ({"reasoning_effort": "low", "logprobs": True}, "reasoning_effort"),
        ({"reasoning_effort": "high", "response_format": {"type": "json_object"}, "tool_choice": "none"}, "reasoning_effort"),
        ({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}}, "reasoning_effort"),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, "reasoning_effort"),
        ({"messages": [{"role": 5, "content": "A", "x": 1}]}, "messages[0].role"),
        ({"tools": [TOOLS[0]] * 129}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a", "description": "x" * 300_000}}]}, "tools"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"bos_token": ""}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "x" * 70_000}}, "chat_template_kwargs"),
        ({"thinking_budget": 0}, "thinking_budget"),
        ({"thinking_budget": 5, "logprobs": True}, "thinking_budget"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x", "type": "function", "function": {"name": "f", "arguments": {}}}]}]},
         "messages[0].tool_calls[0].function"),
        ({"messages": [{"role": "user", "content": "A", "tool_call_id": "x"}]}, "messages[0].tool_call_id"),
    ],
)  # fmt: skip
def test_what_is_refused(reading: Pair, fields: dict[str, Any], param: str) -> None:
    frontend, peers = reading
    peers.script = silent
    status, _, answer = frontend.post(CHAT, {**ASK, **fields})
    assert (status, answer["error"]["param"]) == (400, param), answer


@pytest.mark.parametrize(
    ("choice", "strict", "words"),
    [
        ("auto", False, None),
        ("none", True, None),
        ("required", False, ("call (more)*", "object_1", '"required": ["a"]')),
        ({"type": "function", "function": {"name": "now"}}, False, ("call (more)*", '"now')),
        ("auto", True, ("call* TAIL?", '"required": ["a"]')),
    ],
    ids=["auto", "none", "required", "named", "strict"],
)
def test_calls_that_are_checked_have_a_grammar(reading: Pair, choice: Any, strict: bool, words: tuple[str, ...] | None) -> None:
    frontend, peers = reading
    peers.script = utter(CALLS)
    while not peers.received.empty():
        peers.received.get_nowait()
    tools = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": strict}}, TOOLS[1]]
    assert frontend.post(CHAT, {"messages": MESSAGES, "tools": tools, "tool_choice": choice})[0] == 200
    constraint = peers.expect(Generate).constraint
    assert (constraint is None) == (words is None)
    if constraint is not None and words is not None:
        assert (constraint.kind, constraint.param) == ("lark", "tools")
        assert all(json.dumps(word)[1:-1] in constraint.text or word in constraint.text for word in words), constraint.text
        assert ("add" in constraint.text) == (not isinstance(choice, dict))


def test_schemas_of_any_depth(reading: Pair) -> None:
    """Too deep for one of those who write them down is a client's fault, whoever it is."""
    frontend, peers = reading
    peers.script = utter(CALLS)
    found = set()
    for depth in [10, *range(900, 1000, 4)]:
        tools = [{"type": "function", "function": {"name": "add", "parameters": {"x": "deep"}}}]
        body = json.dumps({"messages": MESSAGES, "tools": tools, "tool_choice": "required"})
        found.add(frontend.call("POST", CHAT, body.replace('"deep"', "[" * depth + "]" * depth).encode())[0])
    assert found == {200, 400}


def test_a_conversation_with_calls_travels(reading: Pair) -> None:
    frontend, peers = reading
    peers.script = utter("Yes.")
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [{**call, "index": 0}], "reasoning": "Hm.", "refusal": None}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "2"}
    while not peers.received.empty():
        peers.received.get_nowait()
    status, _, _ = frontend.post(CHAT, {**ASK, "messages": [*MESSAGES, said, result], "chat_template_kwargs": {"enable_thinking": False}})
    assert status == 200
    prompt = msgspec.msgpack.decode(msgspec.msgpack.encode(peers.expect(Generate).prompt))
    assert prompt["messages"][1:] == [{"role": "assistant", "tool_calls": [call], "reasoning_content": "Hm."}, result | {"name": "add"}]
    assert prompt["variables"] == {"enable_thinking": False}
    assert frontend.post(CHAT, {"messages": MESSAGES, "reasoning_effort": "none"})[0] == 200
    assert [msgspec.msgpack.decode(value) for value in peers.expect(Generate).prompt.variables.values()] == [False]


def test_openais_client(reading: Pair, client: openai.OpenAI) -> None:
    reading[1].script = utter(THOUGHT + CALLS)
    made = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=TOOLS, tool_choice="auto")
    calls: Any = made.choices[0].message.tool_calls
    assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [("add", {"a": 1}), ("now", {})]
    assert made.usage is not None
    assert made.usage.completion_tokens_details is not None
    assert made.usage.completion_tokens_details.reasoning_tokens
    assert made.choices[0].message.model_extra == {"reasoning_content": "Two.", "reasoning": "Two."}


def test_openais_stream_helper(reading: Pair, client: openai.OpenAI) -> None:
    reading[1].script = utter(THOUGHT + CALLS)
    done: list[tuple[str, str]] = []
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=TOOLS) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.done":
                done.append((event.name, event.arguments))
        final = stream.get_final_completion()
    assert done == [("add", '{"a": 1}'), ("now", "{}")]
    assert final.choices[0].finish_reason == "tool_calls"
    assert final.choices[0].message.content == "Sure."
