"""Tools, reasoning, forms and log probabilities of /v1/responses: OpenAI's client and its helpers, with a tokenizer that says what the test wants."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import openai
import pydantic
import pytest

from messages.request import Cancel, Generate
from tests.support.frontend_peers import MODEL, Frontend, Peers, silent
from tests.support.responses import PATH, begun, client_of, ended, told, wait_for
from tests.support.utterances import CALLS, THOUGHT, utter

Pair = tuple[Frontend, Peers]
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ADD: Any = {"type": "function", "name": "add", "description": "Adds.", "parameters": PARAMETERS, "strict": False}
TOOLS: list[Any] = [ADD, {"type": "function", "name": "now"}]
SHOWN = [ADD, {"type": "function", "name": "now", "description": None, "parameters": None, "strict": False}]
LOGPROBS: Any = ["message.output_text.logprobs"]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}


@pytest.fixture(scope="module")
def api(reading: Pair) -> Iterator[openai.OpenAI]:
    with client_of(reading[0]) as made:
        yield made


@pytest.fixture
def client(reading: Pair, api: openai.OpenAI) -> openai.OpenAI:
    """OpenAI's, to a frontend whose tokenizer says that it thinks and makes two calls."""
    frontend, peers = reading
    peers.script = utter(THOUGHT + CALLS)
    frontend.wait_metric("frontend_live_sequences", 0)
    while not peers.received.empty():
        peers.received.get_nowait()
    return api


def prompt_of(message: Generate) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message.prompt))


def plain(items: Any) -> list[tuple[str, str]]:
    """What each item is, and its text."""
    return [(item["type"], item["arguments"] if "arguments" in item else item["content"][0]["text"]) for item in items]


SAID = [("reasoning", "Two."), ("message", "Sure."), ("function_call", '{"a": 1}'), ("function_call", "{}")]


def test_a_whole_answer(reading: Pair, client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="A", tools=TOOLS, tool_choice="auto")
    got: Any = answer.to_dict()
    assert plain(got["output"]) == SAID
    assert [item["id"].partition("_")[0] for item in got["output"]] == ["rs", "msg", "fc", "fc"]
    assert {item["status"] for item in got["output"]} == {"completed"}
    assert [item["name"] for item in got["output"][2:]] == ["add", "now"]
    assert len({item["call_id"] for item in got["output"][2:]}) == 2
    assert (got["status"], got["tools"], got["tool_choice"], got["parallel_tool_calls"]) == ("completed", SHOWN, "auto", True)
    assert got["usage"]["output_tokens_details"]["reasoning_tokens"] == len(THOUGHT[:-2]) // 3
    type(answer).model_validate(got)
    sent = reading[1].expect(Generate)
    assert (set(sent.shown), sent.opening) == ({"<tool_call>", "</tool_call>", "<think>", "</think>"}, "<think>")
    assert [tool["function"]["name"] for tool in prompt_of(sent)["tools"]] == ["add", "now"]
    assert client.responses.retrieve(answer.id).to_dict() == got


def test_the_clients_own_helper_for_streams(client: openai.OpenAI) -> None:
    """Every event is of a type that the client knows, and what it puts together is the response."""
    seen: list[Any] = []
    with client.responses.stream(model=MODEL, input="A", tools=TOOLS) as helper:
        seen.extend(helper)
        final = helper.get_final_response()
    kinds = [event.type.removeprefix("response.") for event in seen]
    assert [kind for number, kind in enumerate(kinds) if kind != kinds[number - 1]] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done") * 2,
        "completed",
    ]
    assert plain([item.to_dict() for item in final.output]) == SAID
    for event in client.responses.create(model=MODEL, input="A", tools=TOOLS, stream=True):
        type(event).model_validate(event.to_dict())
    deltas: dict[int, str] = {}
    for event in seen:
        if hasattr(event, "delta"):
            deltas[event.output_index] = deltas.get(event.output_index, "") + event.delta
    assert list(deltas.values()) == [text for _, text in SAID]
    assert [event.snapshot for event in seen if event.type == "response.function_call_arguments.delta"][-1] == "{}"


class add(pydantic.BaseModel):
    """Adds."""

    a: int


def test_tools_and_forms_of_pydantic(reading: Pair, client: openai.OpenAI) -> None:
    reading[1].script = utter('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>')
    ask: Any = {"model": MODEL, "input": "A", "tools": [openai.pydantic_responses_function_tool(add)]}
    parsed: Any = client.responses.parse(**ask).output[0]
    assert (parsed.type, json.loads(parsed.arguments), parsed.parsed_arguments) == ("function_call", {"a": 1}, add(a=1))
    constraint = reading[1].expect(Generate).constraint
    assert constraint is not None
    assert (constraint.kind, constraint.param) == ("lark", "tools")
    with client.responses.stream(**ask) as helper:
        streamed: Any = helper.get_final_response().output[0]
    assert streamed.parsed_arguments == add(a=1)
    reading[1].script = utter('{"a": 5}')
    answer = client.responses.parse(model=MODEL, input="A", text_format=add)
    assert answer.output_parsed == add(a=5)
    assert answer.to_dict()["text"]["format"]["schema"]["properties"]["a"]["type"] == "integer"  # type: ignore[index]
    constraint = [reading[1].expect(Generate) for _ in range(2)][-1].constraint
    assert constraint is not None
    assert (constraint.kind, constraint.param) == ("json_schema", "text.format")


def test_an_agents_turns(reading: Pair, client: openai.OpenAI) -> None:
    """The output goes back as it is, or is gone on from by its id: the model is given the same."""
    first: Any = client.responses.create(model=MODEL, input="A", tools=TOOLS, include=LOGPROBS)
    calls = first.output[2:]
    results: Any = [
        {"type": "function_call_output", "call_id": calls[0].call_id, "output": "2"},
        {"type": "function_call_output", "call_id": calls[1].call_id, "output": [{"type": "input_text", "text": text} for text in ("noon", "UTC")]},
    ]
    reading[1].script = utter("Yes.")
    client.responses.create(model=MODEL, input=[{"role": "user", "content": "A"}, *first.output, *results], tools=TOOLS)
    second = client.responses.create(model=MODEL, input=results, previous_response_id=first.id, tools=TOOLS)
    given = [prompt_of(reading[1].expect(Generate))["messages"] for _ in range(3)][1:]
    called = [{"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls]
    assert given[0] == given[1]
    assert given[0][1:] == [
        {"role": "assistant", "reasoning_content": "Two.", "content": "Sure.", "tool_calls": called},
        {"role": "tool", "tool_call_id": calls[0].call_id, "content": "2", "name": "add"},
        {
            "role": "tool",
            "tool_call_id": calls[1].call_id,
            "content": [{"type": "text", "text": "noon"}, {"type": "text", "text": "UTC"}],
            "name": "now",
        },
    ]
    kinds = [item.type for item in client.responses.input_items.list(second.id, order="asc")]
    assert kinds == ["message", "reasoning", "message", "function_call", "function_call", "function_call_output", "function_call_output"]


@pytest.mark.parametrize("stream", [False, True])
def test_one_call_alone_ends_the_answer(reading: Pair, client: openai.OpenAI, stream: bool) -> None:
    ask: Any = {"model": MODEL, "input": "A", "tools": TOOLS, "parallel_tool_calls": False}
    if stream:
        with client.responses.stream(**ask) as helper:
            answer: Any = helper.get_final_response()
    else:
        answer = client.responses.create(**ask)
    assert plain(answer.to_dict()["output"]) == SAID[:3]
    assert reading[1].expect(Cancel).finished


@pytest.mark.parametrize(
    ("choice", "word", "calls"),
    [("none", None, 0), ("required", "call (more)*", 2), ({"type": "function", "name": "now"}, "now", 1)],
    ids=["none", "required", "named"],
)
def test_what_is_called(reading: Pair, client: openai.OpenAI, choice: Any, word: str | None, calls: int) -> None:
    answer: Any = client.responses.create(model=MODEL, input="A", tools=TOOLS, tool_choice=choice)
    sent = reading[1].expect(Generate)
    assert answer.to_dict()["tool_choice"] == choice
    assert bool(prompt_of(sent)["tools"]) == (choice != "none")
    assert (sent.constraint is None) == (word is None)
    assert word is None or (sent.constraint is not None and word in sent.constraint.text)
    assert [item.type for item in answer.output] == ["reasoning", "message", *["function_call"] * calls]


@pytest.mark.parametrize(
    ("effort", "thinks", "budget"), [("none", False, None), ("low", True, 2048), ("high", True, None)], ids=["none", "low", "high"]
)
def test_the_effort_of_reasoning(reading: Pair, client: openai.OpenAI, effort: Any, thinks: bool, budget: int | None) -> None:
    answer: Any = client.responses.create(model=MODEL, input="A", reasoning={"effort": effort}).to_dict()
    assert (answer["reasoning"], answer["thinking_budget"]) == ({"effort": effort, "summary": None}, budget)
    assert prompt_of(reading[1].expect(Generate))["variables"] == {"enable_thinking": thinks}


def test_the_form_of_a_text(reading: Pair, client: openai.OpenAI) -> None:
    frontend, peers = reading
    peers.script = utter('{"city": "Oslo"}')
    forms: list[tuple[Any, str | None]] = [(FORMAT, "json_schema"), ({"type": "json_object"}, "json_object"), ({"type": "text"}, None)]
    for form, kind in forms:
        answer: Any = client.responses.create(model=MODEL, input="A", text={"format": form, "verbosity": "medium"})
        shown = {**form, "description": None} if kind == "json_schema" else form
        assert answer.to_dict()["text"] == {"format": shown, "verbosity": "medium"}
        sent = peers.expect(Generate)
        assert (sent.constraint and sent.constraint.kind) == kind
    both = frontend.post(PATH, {"input": "A", "text": {"format": FORMAT}, "tools": TOOLS})
    assert (both[0], both[2]["error"]["param"]) == (400, "text.format")
    assert "response_format" not in both[2]["error"]["message"]
    assert frontend.post(PATH, {"input": "A", "text": {"format": FORMAT}, "tools": TOOLS, "tool_choice": "none"})[0] == 200


@pytest.mark.parametrize("size", [1, 3, 40])
def test_logprobs_are_those_of_the_texts(reading: Pair, client: openai.OpenAI, size: int) -> None:
    reading[1].script = utter(THOUGHT + CALLS, size=size)
    ask: Any = {"model": MODEL, "input": "A", "tools": TOOLS, "include": LOGPROBS, "top_logprobs": 2}
    whole: Any = client.responses.create(**ask)
    assert whole.top_logprobs == 2
    assert reading[1].expect(Generate).sampling.logprobs == 2
    with client.responses.stream(**ask) as helper:
        seen: list[Any] = list(helper)
        streamed: Any = helper.get_final_response()
    deltas = [score.to_dict() for event in seen if event.type == "response.output_text.delta" for score in event.logprobs]
    (done,) = [event for event in seen if event.type == "response.output_text.done"]
    parts = [answer.output[1].content[0].to_dict() for answer in (whole, streamed)]
    assert deltas == [score.to_dict() for score in done.logprobs] == parts[0]["logprobs"] == parts[1]["logprobs"]
    text = THOUGHT + CALLS
    begin, end = len(THOUGHT) // size, -(-(len(THOUGHT) + len("Sure.")) // size)
    assert [score["token"] for score in deltas] == [text[at * size : at * size + size] for at in range(begin, end)]
    assert deltas[0].keys() == {"token", "logprob", "bytes", "top_logprobs"}
    kept: Any = client.responses.retrieve(whole.id, include=LOGPROBS)
    assert kept.to_dict() == whole.to_dict()
    assert len(client.responses.input_items.list(whole.id, include=LOGPROBS).data) == 1
    for call in (client.responses.retrieve, client.responses.input_items.list):
        with pytest.raises(openai.BadRequestError) as error:
            call(whole.id, include=["reasoning.encrypted_content"])
        assert error.value.param == "include"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [ADD, {"type": "mcp", "server_label": "x", "server_url": "y"}]}, "tools[1].type"),
        ({"tools": [{"type": "function", "function": {"name": "add"}}]}, "tools[0].function"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [ADD | {"parameters": []}]}, "tools[0].parameters"),
        ({"tools": [ADD | {"strict": 1}]}, "tools[0].strict"),
        ({"tools": [ADD | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [ADD, ADD]}, "tools[1].name"),
        ({"tools": [ADD | {"parameters": {"maximum": 10**30}}]}, "tools"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "sub"}}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "add"}}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"tool_choice": "required", "ignore_eos": True}, "ignore_eos"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"reasoning": {"effort": "xhigh"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "auto"}}, "reasoning.summary"),
        ({"reasoning": {"mode": "pro"}}, "reasoning"),
        ({"reasoning": {"effort": "low"}, "tools": [], "text": {"format": {"type": "json_object"}}}, "reasoning.effort"),
        ({"reasoning": {"effort": "low"}, "include": LOGPROBS}, "reasoning.effort"),
        ({"thinking_budget": 5, "include": LOGPROBS}, "thinking_budget"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 21, "include": LOGPROBS}, "top_logprobs"),
        ({"text": {"verbosity": "low"}}, "text"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format"),
        ({"text": {"format": {"type": "grammar"}}}, "text"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "add"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call", "call_id": "", "name": "add", "arguments": "{}"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "add", "arguments": "{}", "namespace": "n"}]}, "input[0].namespace"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": [{"type": "input_image"}]}]}, "input[0].output[0]"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "A"}]}]}, "input[0].summary"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "A"}]}, "input[0].encrypted_content"),
        ({"input": [{"type": "reasoning", "summary": [], "content": [{"type": "output_text", "text": "A"}]}]}, "input[0].content[0]"),
    ],
    ids=lambda value: json.dumps(value)[:70] if isinstance(value, dict) else "",
)
def test_what_is_refused(reading: Pair, fields: dict[str, Any], param: str) -> None:
    frontend, peers = reading
    peers.script = silent
    status, _, answer = frontend.post(PATH, {"input": "A", "tools": TOOLS, **fields})
    assert (status, answer["error"]["param"]) == (400, param), answer


def test_tools_and_forms_of_any_depth(reading: Pair, client: openai.OpenAI) -> None:
    """Too deep for one of those who write and read them is a client's fault, whoever it is."""
    frontend, found = reading[0], set()
    for depth in [10, *range(900, 1000, 12)]:
        for body in (
            {"tools": [ADD | {"parameters": {"x": "deep"}}], "tool_choice": "required"},
            {"text": {"format": FORMAT | {"schema": {"x": "deep"}}}},
        ):
            text = json.dumps({"input": "A", **body}).replace('"deep"', "[" * depth + "]" * depth)
            found.add(frontend.call("POST", PATH, text.encode())[0])
    assert found == {200, 400}


def test_in_the_background_a_call_is_read_resumed_and_cancelled(reading: Pair, client: openai.OpenAI) -> None:
    """A client comes back in the middle of the arguments; another response is cancelled there."""
    frontend, peers = reading
    name, asking = begun(frontend, peers, tools=TOOLS, include=LOGPROBS)
    assert asking.sampling.logprobs == 0
    told(peers, asking, THOUGHT, '<tool_call>\n{"name": "add", "arguments": {"a"', end=False)
    half: Any = wait_for(frontend, name, lambda found: len(found["output"]) == 2)
    assert [(item["type"], item["status"]) for item in half["output"]] == [("reasoning", "completed"), ("function_call", "in_progress")]
    assert half["output"][1]["arguments"] == '{"a"'
    early = client.responses.retrieve(name, stream=True)
    first = [next(early) for _ in range(9)]
    early.close()
    told(peers, asking, ": 1}}\n</tool_call>")
    final = ended(frontend, name)
    with client.responses.stream(response_id=name, tools=TOOLS, starting_after=first[-1].sequence_number) as helper:
        seen = [event.sequence_number for event in helper]
        assert [item.type for item in helper.get_final_response().output] == ["reasoning", "function_call"]
    rest = list(client.responses.retrieve(name, stream=True, starting_after=first[-1].sequence_number))
    assert [event.sequence_number for event in (*first, *rest)] == list(range(len(first) + len(rest)))
    assert seen == [event.sequence_number for event in rest]
    arguments = "".join(event.delta for event in (*first, *rest) if event.type == "response.function_call_arguments.delta")
    assert arguments == final["output"][1]["arguments"] == '{"a": 1}'
    assert rest[-1].to_dict()["response"] == final
    gone, asking = begun(frontend, peers, tools=TOOLS)
    told(peers, asking, '<tool_call>\n{"name": "add", "arguments": {"a"', end=False)
    wait_for(frontend, gone, lambda found: bool(found["output"]))
    answer: Any = client.responses.cancel(gone).to_dict()
    assert (answer["status"], answer["output"][0]["status"], answer["output"][0]["arguments"]) == ("cancelled", "incomplete", '{"a"')
