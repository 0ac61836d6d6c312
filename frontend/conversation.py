"""The `messages` of a request: which fields of a message are honoured, and how they travel to the tokenizer."""

from typing import Any

import msgspec

from frontend.errors import invalid
from frontend.refusals import MESSAGE, Neutral, strip
from frontend.tools import packed_tools, packed_variables
from messages.request import ChatPrompt

MAX_CALLS = 128
_FIELDS = {
    "assistant": ("role", "content", "tool_calls", "reasoning_content", "reasoning"),
    "tool": ("role", "content", "tool_call_id", "name"),
}
_INDEX = {"index": Neutral(lambda value: isinstance(value, int), {"type": "integer"})}
"""A call that was put together from a stream still has it."""


def chat_prompt(
    messages: list[dict[str, Any]], add_generation_prompt: bool, tools: list[dict[str, Any]] | None = None, variables: dict[str, Any] | None = None
) -> ChatPrompt:
    """Messages as the tokenizer gets them. `tools` are checked already. Raises ApiError 400 that names the message and the field."""
    names: dict[str, str] = {}
    return ChatPrompt(
        [_message(message, f"messages[{number}]", names) for number, message in enumerate(messages)],
        add_generation_prompt,
        packed_tools(tools or []),
        packed_variables(variables or {}),
    )


def _message(message: dict[str, Any], where: str, names: dict[str, str]) -> dict[str, msgspec.Raw]:
    """`names` of the functions of the calls so far, by id: a result gets the one of its call, which some templates insist on."""
    role = message.get("role")
    if not isinstance(role, str):
        raise invalid(f"{where}.role must be text.", f"{where}.role")
    message = {name: value for name, value in message.items() if name not in MESSAGE or not MESSAGE[name](value)}
    fields = strip(message, _FIELDS.get(role, ("role", "content")), MESSAGE, f"{where}.")
    if calls := fields.pop("tool_calls", None):
        fields["tool_calls"] = _calls(calls, f"{where}.tool_calls")
        names.update((call["id"], call["function"]["name"]) for call in fields["tool_calls"] if "id" in call)
    _keep_reasoning(fields, where)
    for name in ("tool_call_id", "name"):
        if not isinstance(fields.get(name, ""), str):
            raise invalid(f"{where}.{name} must be text.", f"{where}.{name}")
    if fields.get("tool_call_id") in names:
        fields.setdefault("name", names[fields["tool_call_id"]])
    if not (calls and fields.get("content") is None):
        _check_content(fields.get("content"), f"{where}.content")
    return {name: msgspec.Raw(msgspec.msgpack.encode(value)) for name, value in fields.items()}


def _keep_reasoning(fields: dict[str, Any], where: str) -> None:
    """Under the one name that templates know."""
    found = fields.pop("reasoning", None) or fields.get("reasoning_content")
    if found is not None:
        if not isinstance(found, str):
            raise invalid(f"{where}.reasoning_content must be text.", f"{where}.reasoning_content")
        fields["reasoning_content"] = found


def _calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or len(calls) > MAX_CALLS:
        raise invalid(f"{where} must be a list of at most {MAX_CALLS} calls.", where)
    return [_call(call, f"{where}[{number}]") for number, call in enumerate(calls)]


def _call(call: Any, where: str) -> dict[str, Any]:
    """A call as servers answer it: id, type, and a function with a name and JSON text."""
    if not isinstance(call, dict):
        raise invalid(f"{where} must be an object.", where)
    fields = strip(call, ("id", "type", "function"), _INDEX, f"{where}.")
    function = fields.get("function")
    if fields.get("type", "function") != "function" or not isinstance(function, dict) or not isinstance(fields.get("id", ""), str):
        sentence = f'{where} must be like {{"id": "...", "type": "function", "function": {{"name": "...", "arguments": "..."}}}}.'
        raise invalid(sentence, where)
    inner = strip(function, ("name", "arguments"), {}, f"{where}.function.")
    if not isinstance(inner.get("name"), str) or not isinstance(inner.setdefault("arguments", "{}"), str):
        raise invalid(f"{where}.function needs a name, and arguments as JSON text.", f"{where}.function")
    return {**fields, "type": "function", "function": inner}


def _check_content(content: Any, where: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise invalid(f"{where} must be text: a string or a list of text parts.", where)
    for number, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            sentence = f'{where}[{number}] must be like {{"type": "text", "text": "..."}}; nothing else is supported.'
            raise invalid(sentence, where, "unsupported_parameter")
        strip(part, ("type", "text"), {}, f"{where}[{number}].")
