"""Tools, calls and results in the form that each kind of chat template expects, and which dialect a template teaches."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dialects import detect
from dialects.names import REASONING_NAMES, TOOL_NAMES
from dialects.registry import REASONING, TOOLS
from messages.request import ChatPrompt
from tests.support.tool_model import MARKERS, make
from tokenizer_proc import folder_source
from tokenizer_proc.dialect_facts import dialect_facts
from tokenizer_proc.errors import RequestError
from tokenizer_proc.prompts import PromptEncoder
from tokenizer_proc.templates import ChatTemplate, plain_messages, plain_tools, plain_variables
from tokenizer_proc.vocabulary import build_vocabulary

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
START = "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}[{{ message.role }}]{{ message.content }}"
END = "{% endfor %}"


def looped(call: str) -> str:
    return START + "{% for call in message.tool_calls or [] %}" + call + "{% endfor %}" + END


WRITERS = {
    "as an object": looped('{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'),
    "as either": looped("{% set a = call.function.arguments %}{% if a is string %}{{ a }}{% else %}{{ a | tojson }}{% endif %}"),
    "as a text": looped("{{ '```json ' + call.function.arguments + ' ```' }}"),
    "as it comes": looped("{{ call.function.arguments }}"),
    "by its members": looped("{% for name, value in call.function.arguments.items() %}<parameter={{ name }}>{{ value }}{% endfor %}"),
    "as a call": looped("{{ call.function | tojson }}"),
}


def chat(tools: list[Any] | None = None, **variables: Any) -> ChatPrompt:
    function = {"name": "f", "arguments": json.dumps({"x": 1})}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "A"},
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "content": [{"type": "text", "text": "B"}], "tool_call_id": "c"},
    ]
    return ChatPrompt(
        [{name: raw(value) for name, value in message.items()} for message in messages],
        tools=[raw(tool) for tool in tools or []],
        variables={name: raw(value) for name, value in variables.items()},
    )


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


def render(template: ChatTemplate, prompt: ChatPrompt) -> str:
    return template.render(plain_messages(prompt), True, plain_tools(prompt), plain_variables(prompt))


@pytest.mark.parametrize("text", WRITERS.values(), ids=list(WRITERS))
def test_arguments_come_as_the_template_writes_them(text: str) -> None:
    written = render(ChatTemplate(text, {}), chat())
    assert ('"x": 1' in written) or "<parameter=x>1" in written
    assert '\\"' not in written
    assert ("{'x': 1}" in written) is False
    assert written.startswith("[user]A[assistant]")
    assert written.endswith("[tool]B")


@pytest.mark.parametrize(
    ("content", "written"),
    [
        ("{% if message.content is not none %}({{ message.content }}){% endif %}", "(A)[]"),
        ("({{ message.content }})", "(A)()[]"),
        ("{% if 'x' not in message.content %}({{ message.content }}){% endif %}", "(A)()[]"),
    ],
    ids=["none", "empty", "looked into"],
)
def test_calls_without_content_have_what_the_template_looks_for(content: str, written: str) -> None:
    text = "{% for message in messages[:2] %}" + content + "{% if message.tool_calls %}[]{% endif %}{% endfor %}"
    assert render(ChatTemplate(text + "{# tool #}", {}), chat()) == written


def test_arguments_that_are_no_object_stay_a_text() -> None:
    prompt = chat()
    bad = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": '}}]
    prompt.messages[1]["tool_calls"] = raw(bad)
    assert r'"{\"x\": "' in render(ChatTemplate(WRITERS["as an object"], {}), prompt)


@pytest.mark.parametrize("arguments", [r'{"x": "\ud83d"}', '{"x": NaN}', '{"x": 1e999}'], ids=["half a pair", "no number", "too large"])
def test_arguments_that_could_not_be_written_again_stay_a_text(arguments: str) -> None:
    prompt = chat()
    prompt.messages[1]["tool_calls"] = raw([{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}])
    written = render(ChatTemplate(WRITERS["as an object"], {}), prompt)
    assert json.dumps(arguments) in written
    written.encode()


def test_tools_and_variables_reach_the_template() -> None:
    template = ChatTemplate(START + END + "{{ enable_thinking }}{{ bos_token }}{{ add_generation_prompt }}", {"bos_token": "B"})
    prompt = ChatPrompt([{"role": raw("user"), "content": raw("A")}], tools=[raw(TOOL)], variables={"enable_thinking": raw(False)})
    assert render(template, prompt) == json.dumps([TOOL]) + "[user]AFalseBTrue"


@pytest.mark.parametrize(
    ("text", "tools", "param"),
    [
        (START.replace("tools", "things") + END, [TOOL], "tools"),
        (START + END, None, "messages"),
        ("{% for message in messages %}{{ message.tool_calls }}{% endfor %}", [TOOL], "tools"),
    ],
    ids=["tools", "calls", "tools of a template with calls"],
)
def test_what_a_template_has_no_place_for_is_refused(text: str, tools: list[Any] | None, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(ChatTemplate(text, {}), chat(tools))
    assert (caught.value.problem.status, caught.value.problem.code, caught.value.problem.param) == (400, "tools_not_supported", param)


def test_a_variable_that_a_template_does_not_name_is_refused() -> None:
    with pytest.raises(RequestError) as caught:
        render(ChatTemplate("{{ enable_thinking }}", {}), ChatPrompt([{"role": raw("user")}], variables={"thinking_level": raw(1)}))
    assert (caught.value.problem.code, caught.value.problem.param) == ("unsupported_parameter", "chat_template_kwargs")


@pytest.mark.parametrize(
    ("template", "switch"),
    [
        ("{% if enable_thinking is defined and not enable_thinking %}", "enable_thinking"),
        ("{% if thinking %}", "thinking"),
        ("{%- if thinking is defined -%}", "thinking"),
        ("Mind your thinking.", ""),
    ],
)
def test_the_template_tells_the_switch(template: str, switch: str) -> None:
    assert detect.thinking_switch(template) == switch


def test_bytes_that_are_no_value_are_refused() -> None:
    for prompt in (ChatPrompt([], tools=[msgspec.Raw(b"\xc1")]), ChatPrompt([], variables={"a": msgspec.Raw(b"\xc1")})):
        with pytest.raises(RequestError):
            render(ChatTemplate("A {{ a }}", {}), msgspec.structs.replace(chat(), tools=prompt.tools, variables=prompt.variables))


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("{{ messages }}", "none", "none"),
        ("call as <tool_call>\n{...}</tool_call>", "hermes", "none"),
        ("<tool_call>\n{...}</tool_call> {{ '<think>\n\n</think>' }}", "hermes", "think"),
        ("<tool_call>\n<function=f>", "qwen3_coder", "none"),
        ("<|start_header_id|> Respond in the format {\"name\": n, \"parameters\": d}", "llama3_json", "none"),
        ("{{ '<|python_tag|>' }}", "llama3_json", "none"),
        ("[TOOL_CALLS] [THINK][/THINK]", "mistral", "mistral"),
        ("{{ content.split('</think>')[-1] }}", "none", "think"),
    ],
)
def test_the_template_tells_the_dialect(template: str, tools: str, reasoning: str) -> None:
    assert (detect.tool_dialect(template), detect.reasoning_dialect(template)) == (tools, reasoning)


def test_options_name_the_dialects_there_are() -> None:
    assert (tuple(TOOLS), tuple(REASONING)) == (TOOL_NAMES, REASONING_NAMES)


def test_the_facts_of_a_model(tmp_path: Path) -> None:
    """Of one whose markers are special tokens, whose template opens the reasoning when it is told to."""
    source = folder_source.read(make(tmp_path / "calls"))
    vocabulary = build_vocabulary(source, source.tokenizer.get_vocab_size(), frozenset())
    encoder = PromptEncoder(vocabulary, ChatTemplate(source.template or "", vocabulary.names))
    facts = dialect_facts(encoder, "auto", "auto")
    ids = {f"marker:{text}": vocabulary.special_ids[text] for text in MARKERS}
    switch = {"thinking_switch": "enable_thinking", "opens_reasoning": 0, "opens_reasoning_on": 1, "opens_reasoning_off": 0}
    assert facts == {"tool_parser": "hermes", "reasoning_parser": "think", **ids, **switch}
    assert dialect_facts(encoder, "none", "none") == {"tool_parser": "none", "reasoning_parser": "none"}
    named = dialect_facts(PromptEncoder(vocabulary, None), "mistral", "mistral")
    assert named == {"tool_parser": "mistral", "reasoning_parser": "mistral"}
