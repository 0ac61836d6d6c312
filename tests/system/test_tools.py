"""Tool calls and reasoning through a whole cluster, whose model has the markers as special tokens."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.support.cluster import ROOT, Cluster, running_cluster
from tests.support.tool_model import ANSWER, make

AGENT = ROOT / "examples" / "calculator_agent.py"
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOLS: Any = [{"type": "function", "function": {"name": "calculator", "parameters": PARAMETERS}}]
MESSAGES: Any = [{"role": "user", "content": "What is 6 * 7?"}]
ASK: Any = {"model": "calls", "messages": MESSAGES, "tools": TOOLS, "temperature": 0}
ARGUMENTS = '{"expression": "6 * 7"}'


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("models") / "calls"
    with running_cluster(make(folder), "--threads", "1") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(calling: Cluster) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{calling.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_the_parsers_are_shown(calling: Cluster, client: openai.OpenAI) -> None:
    extra = client.models.list().data[0].model_extra or {}
    assert (extra["tool_parser"], extra["reasoning_parser"]) == ("hermes", "think")
    assert "the parsers hermes for tool calls and think for reasoning" in calling.log()


@pytest.mark.parametrize("thinking", [False, True])
def test_a_call(client: openai.OpenAI, thinking: bool) -> None:
    """With thinking the template opens the reasoning, and the answer begins within."""
    ask = {**ASK, "extra_body": {"chat_template_kwargs": {"enable_thinking": thinking}}}
    whole = client.chat.completions.create(**ask)
    with client.chat.completions.stream(**ask) as stream:
        streamed = stream.get_final_completion()
    for made in (whole, streamed):
        message: Any = made.choices[0].message
        assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [("calculator", ARGUMENTS)]
        assert (made.choices[0].finish_reason, message.content or None) == ("tool_calls", None)
    assert whole.choices[0].message.model_extra == {"reasoning_content": "Let me think about it.", "reasoning": "Let me think about it."}
    assert whole.usage is not None
    assert whole.usage.completion_tokens_details is not None
    assert whole.usage.completion_tokens_details.reasoning_tokens == 5 + (not thinking)


def test_the_reasoning_has_a_budget(client: openai.OpenAI) -> None:
    """It is closed behind the token that uses the budget up; the model goes on behind the closing text."""
    ask = {**ASK, "extra_body": {"thinking_budget": 3}}
    for stream in (False, True):
        if stream:
            with client.chat.completions.stream(**ask) as events:
                made: Any = events.get_final_completion()
        else:
            made = client.chat.completions.create(**ask)
        assert made.choices[0].message.tool_calls[0].function.arguments == ARGUMENTS
        assert made.choices[0].finish_reason == "tool_calls"
        if not stream:
            assert made.choices[0].message.model_extra["reasoning_content"] == "Let me"


OTHER: Any = {"type": "object", "properties": {"n": {"enum": [7, 8]}}, "required": ["n"], "additionalProperties": False}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "other"}}], ids=["required", "named"])
def test_a_call_that_the_model_would_not_make(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    tools = [{"type": "function", "function": {"name": "other", "parameters": OTHER}}]
    ask = {**ASK, "tools": tools, "tool_choice": choice, "n": 2, "max_tokens": 200, "parallel_tool_calls": False}
    if stream:
        with client.chat.completions.stream(**ask) as events:
            made: Any = events.get_final_completion()
    else:
        made = client.chat.completions.create(**ask)
    for one in made.choices:
        assert one.finish_reason == "tool_calls"
        (call,) = one.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)["n"] in (7, 8)) == ("other", True)


def test_reasoning_with_a_budget_before_a_call_that_must_come(client: openai.OpenAI) -> None:
    """The text that closes it is one that the grammar allows."""
    variables = {"chat_template_kwargs": {"enable_thinking": True}, "thinking_budget": 2}
    tools = [{"type": "function", "function": {"name": "other", "parameters": OTHER}}]
    made: Any = client.chat.completions.create(**ASK | {"tools": tools, "tool_choice": "required", "max_tokens": 300, "extra_body": variables})
    assert made.choices[0].message.model_extra["reasoning_content"].startswith("Let me")
    assert json.loads(made.choices[0].message.tool_calls[0].function.arguments)["n"] in (7, 8)


def test_strict_tools_leave_the_model_its_text(client: openai.OpenAI) -> None:
    strict = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}]
    made: Any = client.chat.completions.create(**{**ASK, "tools": strict})
    assert made.choices[0].message.tool_calls[0].function.arguments == ARGUMENTS
    assert made.choices[0].message.model_extra["reasoning_content"] == "Let me think about it."


def test_anthropics_client(calling: Cluster) -> None:
    with anthropic.Anthropic(base_url=calling.url, api_key="none", max_retries=0, timeout=60) as made:
        tools: Any = [{"name": "calculator", "input_schema": PARAMETERS}]
        ask: Any = {"model": "calls", "messages": MESSAGES, "tools": tools, "max_tokens": 100, "extra_body": {"temperature": 0}}
        first = made.messages.create(**ask)
        assert [block.type for block in first.content] == ["thinking", "tool_use"]
        use: Any = first.content[1]
        assert (use.input, first.stop_reason) == ({"expression": "6 * 7"}, "tool_use")
        counted = made.messages.count_tokens(model="calls", messages=MESSAGES, tools=tools).input_tokens
        assert counted == first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0)
        result: Any = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "42"}]}
        ask["messages"] = [*MESSAGES, {"role": "assistant", "content": first.content}, result]
        with made.messages.stream(**ask) as stream:
            assert "".join(stream.text_stream) == "".join(ANSWER)


@pytest.mark.parametrize("stream", [False, True])
def test_the_tool_runner_of_anthropics_client(calling: Cluster, stream: bool) -> None:
    """It asks for a conversation that the server keeps, is told that there is none, and goes on without."""
    asked: list[str] = []

    def calculator(expression: str) -> str:
        """Works out an expression."""
        asked.append(expression)
        return "42"

    with anthropic.Anthropic(base_url=calling.url, api_key="none", max_retries=0, timeout=60) as made:
        ask: Any = {"model": "calls", "messages": MESSAGES, "max_tokens": 100, "extra_body": {"temperature": 0}, "stream": stream}
        runner: Any = made.beta.messages.tool_runner(tools=[anthropic.beta_tool(calculator)], max_iterations=4, **ask)
        said = [(one.get_final_message() if stream else one).content for one in runner]
    assert asked == ["6 * 7"]
    assert [[block.type for block in content] for content in said] == [["thinking", "tool_use"], ["text"]]
    assert said[1][0].text == "".join(ANSWER)


def test_an_agent_that_asks_for_responses(client: openai.OpenAI) -> None:
    """The call and its result stay with the server, which is told of the result alone; the second answer is made in the background."""
    tools: Any = [{"type": "function", "name": "calculator", "parameters": PARAMETERS, "strict": True}]
    ask: Any = {"model": "calls", "tools": tools, "temperature": 0}
    with client.responses.stream(input="What is 6 * 7?", include=["message.output_text.logprobs"], **ask) as stream:
        first: Any = stream.get_final_response()
    assert [item.type for item in first.output] == ["reasoning", "function_call"]
    assert first.output[0].content[0].text == "Let me think about it."
    assert (first.output[1].arguments, first.output[1].parsed_arguments) == (ARGUMENTS, {"expression": "6 * 7"})
    assert first.usage.output_tokens_details.reasoning_tokens == 6
    result: Any = {"type": "function_call_output", "call_id": first.output[1].call_id, "output": "42"}
    ask |= {"input": [result], "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    events: Any = client.responses.create(previous_response_id=first.id, background=True, stream=True, **ask)
    seen = list(events)
    second: Any = client.responses.retrieve(seen[0].response.id)
    assert second.output_text == "".join(ANSWER)
    scores = second.output[0].content[0].logprobs
    assert [(score.token, len(score.top_logprobs)) for score in scores] == [(token, 1) for token in ANSWER]
    assert [score.to_dict() for event in seen if event.type == "response.output_text.delta" for score in event.logprobs] == [
        score.to_dict() for score in scores
    ]
    stateless = client.responses.create(**ask | {"input": [{"role": "user", "content": "What is 6 * 7?"}, *first.output, result]})
    assert stateless.output_text == second.output_text
    assert stateless.usage is not None
    assert stateless.usage.input_tokens == second.usage.input_tokens


def test_the_example(calling: Cluster) -> None:
    command = [sys.executable, str(AGENT), "--url", calling.url, "What is 6 * 7?"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"calculator({ARGUMENTS}) = 42\n{''.join(ANSWER)}\n"
