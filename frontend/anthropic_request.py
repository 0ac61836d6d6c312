"""Requests of Anthropic's Messages API, and how they become chat requests of ours."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from frontend.conversation import MAX_CALLS
from frontend.errors import invalid
from frontend.forms import JsonSchema, ResponseFormat
from frontend.refusals import Neutral, strip
from frontend.schema import ChatRequest, Messages, StopString, TokenLimit, TopK
from messages.request import MAX_TOOLS
from messages.sampling import Temperature

MAX_STOP_SEQUENCES = 16


def _with(**fields: tuple[Any, ...] | type) -> Neutral:
    """An object with no other fields than these, each with one of its values, or of its type."""

    def check(value: Any) -> bool:
        return isinstance(value, dict) and all(name in fields and _fits(field, fields[name]) for name, field in value.items())

    return Neutral(check)


def _fits(value: Any, allowed: tuple[Any, ...] | type) -> bool:
    return value is None or (isinstance(value, allowed) if isinstance(allowed, type) else value in allowed)


_hint = {"cache_control": _with(type=("ephemeral",), ttl=("5m", "1h"))}
"""Prompts are cached anyway."""


def _one_of(*values: Any) -> Neutral:
    return Neutral(lambda value: value in values, {"enum": list(values)})


_TOOL = {**_hint, "type": _one_of("custom")}


NEUTRAL: dict[str, Neutral] = {
    **_hint,
    "metadata": _with(user_id=str),
    "service_tier": _one_of("auto", "standard_only"),
    "speed": _one_of("standard"),
    "container": Neutral(lambda value: False),
    "diagnostics": Neutral(lambda value: False),
    "inference_geo": Neutral(lambda value: False),
    "thread": Neutral(lambda value: False),
}


class CountRequest(msgspec.Struct, kw_only=True):
    """POST /v1/messages/count_tokens."""

    messages: Messages
    model: str | None = None
    system: Any = None
    tools: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MAX_TOOLS)] = []
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """POST /v1/messages. `system` is a text or a list of text blocks."""

    max_tokens: TokenLimit
    stream: bool = False
    stop_sequences: Annotated[list[StopString], msgspec.Meta(max_length=MAX_STOP_SEQUENCES)] = []
    temperature: Temperature | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None = None
    top_k: TopK | None = None


def to_chat(request: CountRequest) -> tuple[ChatRequest, bool | None]:
    """The same as a chat request, and whether the model is told to think or not to. Raises ApiError 400 that names the field."""
    choice, parallel = _choice(request.tool_choice)
    budget, thinks = _thinking(request.thinking)
    system = _text(request.system, "system")
    talk: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    chat = ChatRequest(
        messages=[*talk, *_conversation(request.messages)],
        model=request.model,
        tools=[_tool(tool, f"tools[{number}]") for number, tool in enumerate(request.tools)],
        tool_choice=choice,
        parallel_tool_calls=parallel,
        thinking_budget=budget,
        response_format=_form(request.output_config),
    )
    if isinstance(request, MessagesRequest):
        chat.max_tokens, chat.stream, chat.stop = request.max_tokens, request.stream, request.stop_sequences
        chat.temperature, chat.top_p, chat.top_k = request.temperature, request.top_p, request.top_k
    return chat, thinks


def _form(config: dict[str, Any] | None) -> ResponseFormat | None:
    """Of the answer."""
    wanted = strip(config or {}, ("format",), {"effort": Neutral(lambda value: False)}, "output_config.").get("format")
    if wanted is None:
        return None
    fields = strip(wanted, ("type", "schema"), {}, "output_config.format.") if isinstance(wanted, dict) else {}
    if fields.get("type") != "json_schema" or not isinstance(fields.get("schema"), dict):
        raise invalid("output_config.format must have the type json_schema and a schema.", "output_config.format")
    return ResponseFormat(type="json_schema", json_schema=JsonSchema(schema=fields["schema"]))


def _choice(choice: dict[str, Any] | None) -> tuple[str | dict[str, Any] | None, bool]:
    """As chat has it, and whether several calls may come."""
    if choice is None:
        return None, True
    fields = strip(choice, ("type", "name", "disable_parallel_tool_use"), {}, "tool_choice.")
    kind, single = fields.get("type"), fields.get("disable_parallel_tool_use", False)
    if not isinstance(single, bool):
        raise invalid("tool_choice.disable_parallel_tool_use must be true or false.", "tool_choice")
    if kind == "tool" and isinstance(fields.get("name"), str):
        return {"type": "function", "function": {"name": fields["name"]}}, not single
    if kind not in ("auto", "any", "none") or "name" in fields:
        raise invalid("tool_choice must have the type auto, any, none, or tool with a name.", "tool_choice")
    return "required" if kind == "any" else str(kind), not single


def _thinking(thinking: dict[str, Any] | None) -> tuple[int | None, bool | None]:
    """The budget, and whether the template is told to think or not to."""
    if thinking is None:
        return None, None
    fields = strip(thinking, ("type", "budget_tokens"), {"display": _one_of("summarized")}, "thinking.")
    kind, budget = fields.get("type"), fields.get("budget_tokens")
    if kind not in ("enabled", "disabled", "adaptive") or (budget is not None) != (kind == "enabled"):
        raise invalid("thinking must have the type enabled with budget_tokens, adaptive, or disabled.", "thinking")
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int) or not 1 <= budget < 2**31):
        raise invalid("thinking.budget_tokens must be an integer of at least 1.", "thinking.budget_tokens")
    return budget, kind != "disabled"


def _tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    fields = strip(tool, ("name", "description", "input_schema", "strict"), _TOOL, f"{where}.")
    named = {name: fields.get(name) for name in ("name", "description", "strict")} | {"parameters": fields.get("input_schema")}
    return {"type": "function", "function": {name: value for name, value in named.items() if value is not None}}


def _conversation(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        fields = strip(message, ("role", "content"), {}, f"{where}.")
        content = fields.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            raise invalid(f"{where}.content must be a text or a list of blocks.", f"{where}.content")
        if fields.get("role") == "user":
            yield from _of_user(blocks, f"{where}.content")
        elif fields.get("role") == "assistant":
            if number == len(messages) - 1:
                raise invalid("messages must not end with the assistant's: an answer cannot be begun for it.", "messages", "unsupported_parameter")
            yield _of_assistant(blocks, f"{where}.content")
        elif fields.get("role") == "system":
            yield {"role": "system", "content": _text(blocks, f"{where}.content")}
        else:
            raise invalid(f"{where}.role must be user, assistant or system.", f"{where}.role")


def _of_user(blocks: list[dict[str, Any]], where: str) -> Iterator[dict[str, Any]]:
    """Results of tools are messages of their own."""
    texts: list[str] = []
    results = 0
    for number, block in enumerate(blocks):
        place = f"{where}[{number}]"
        if block.get("type") == "tool_result":
            results += 1
            yield _result(block, place)
        else:
            texts.append(_text_of(block, place))
    if texts or not results:
        yield {"role": "user", "content": "\n".join(texts)}


def _result(block: dict[str, Any], where: str) -> dict[str, Any]:
    fields = strip(block, ("type", "tool_use_id", "content", "is_error"), _hint, f"{where}.")
    of, failed = fields.get("tool_use_id"), fields.get("is_error", False)
    if not isinstance(of, str) or not isinstance(failed, bool):
        raise invalid(f"{where} needs a tool_use_id, and is_error is true or false.", where)
    text = _text(fields.get("content"), f"{where}.content")
    return {"role": "tool", "tool_call_id": of, "content": f"Error: {text}" if failed else text}


def _of_assistant(blocks: list[dict[str, Any]], where: str) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        place = f"{where}[{number}]"
        if block.get("type") == "tool_use":
            calls.append(_call(block, place))
        elif block.get("type") == "thinking":
            fields = strip(block, ("type", "thinking"), {"signature": Neutral(lambda value: isinstance(value, str))}, f"{place}.")
            thoughts.append(_string(fields.get("thinking"), f"{place}.thinking"))
        else:
            texts.append(_text_of(block, place))
    if len(calls) > MAX_CALLS:
        raise invalid(f"{where} has more than {MAX_CALLS} calls.", where)
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    return message | ({"reasoning_content": "\n".join(thoughts)} if thoughts else {}) | ({"tool_calls": calls} if calls else {})


def _call(block: dict[str, Any], where: str) -> dict[str, Any]:
    fields = strip(block, ("type", "id", "name", "input"), {**_hint, "caller": _with(type=("direct",))}, f"{where}.")
    given = fields.get("input", {})
    if not isinstance(given, dict):
        raise invalid(f"{where}.input must be an object.", f"{where}.input")
    function = {"name": _string(fields.get("name"), f"{where}.name"), "arguments": json.dumps(given, ensure_ascii=False)}
    return {"id": _string(fields.get("id"), f"{where}.id"), "type": "function", "function": function}


def _text(content: Any, where: str) -> str:
    """Of a text, a list of text blocks, or nothing."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise invalid(f"{where} must be a text or a list of text blocks.", where)
    return "\n".join([_text_of(block, f"{where}[{number}]") for number, block in enumerate(content)])


def _text_of(block: dict[str, Any], where: str) -> str:
    if block.get("type") != "text":
        raise invalid(f"{where} has the type {str(block.get('type'))[:64]!r}, which is not supported here.", where, "unsupported_parameter")
    fields = strip(block, ("type", "text"), {**_hint, "citations": Neutral(lambda value: value == [])}, f"{where}.")
    return _string(fields.get("text"), f"{where}.text")


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"{where} must be text.", where)
    return value
