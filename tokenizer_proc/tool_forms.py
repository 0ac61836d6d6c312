"""Tools and tool calls in the form that a chat template expects."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from tokenizer_proc import problems
from tokenizer_proc.errors import RequestError

Talk = list[dict[str, Any]]
_PROBE = {"probe": 1}
_WRITTEN = ('"probe": 1', '"probe":1')
_USER: dict[str, Any] = {"role": "user", "content": "A"}


class ToolForms:
    """Of the template with this `text`; `render` gives the prompt of a conversation.

    Clients write the arguments of a call as JSON text. Most templates write them with `tojson` and so need the object, some paste the text. Where a
    message has calls and no content, some look for none and some for an empty text. How they write a small conversation tells.
    """

    def __init__(self, text: str, render: Callable[[Talk], str]) -> None:
        self._takes_tools = "tools" in text
        self._takes_calls = "tool_calls" in text
        self._takes_results = "tool" in text or "raise_exception" in text  # one that refuses roles has a sentence of its own
        self._objects = self._takes_calls and _wants_objects(render)
        self._nothing: str | None = "" if not self._takes_calls or _writes_none(render, self._objects) else None

    def check(self, messages: Talk, tools: list[Any] | None) -> None:
        """Raises RequestError for what the template has no place for."""
        if tools and not self._takes_tools:
            raise RequestError(problems.no_tools("tools", "tools"))
        for message in messages:
            if message.get("tool_calls") and not self._takes_calls:
                raise RequestError(problems.no_tools("tool calls in messages", "messages"))
            if message.get("role") == "tool" and not self._takes_results:
                raise RequestError(problems.no_tools("messages of the role tool", "messages"))

    def shaped(self, messages: Talk) -> Talk:
        """The messages with arguments as the template wants them; those that are no JSON object stay a text."""
        return [self._message(message) if message.get("tool_calls") else message for message in messages]

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        calls = [self._call(call) for call in message["tool_calls"]]
        return message | {"tool_calls": calls, "content": message.get("content") or self._nothing}

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        return call | {"function": function | {"arguments": _object(function["arguments"])}} if self._objects else call


def _object(arguments: Any) -> Any:
    try:
        value = msgspec.json.decode(arguments)  # stricter than json: half of a surrogate pair could not be tokenized, NaN is no JSON
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _wants_objects(render: Callable[[Talk], str]) -> bool:
    """Whether arguments come out as JSON when they go in as an object; if they do in neither form, whether objects are taken at all."""
    as_object, as_text = (_tried(render, arguments) for arguments in (_PROBE, json.dumps(_PROBE)))
    for prompt, answer in ((as_object, True), (as_text, False)):
        if prompt is not None and any(written in prompt for written in _WRITTEN):
            return answer
    return as_object is not None and "probe" in as_object


def _writes_none(render: Callable[[Talk], str], objects: bool) -> bool:
    """Whether a content that is none fails, or comes out as a word."""
    prompt = _tried(render, _PROBE if objects else json.dumps(_PROBE), None)
    return prompt is None or "None" in prompt


def _tried(render: Callable[[Talk], str], arguments: object, content: str | None = "") -> str | None:
    """None when the template cannot handle it."""
    call = {"id": "call12345", "type": "function", "function": {"name": "probe_it", "arguments": arguments}}
    answer = {"role": "assistant", "content": content, "tool_calls": [call]}
    result = {"role": "tool", "content": "1", "tool_call_id": "call12345", "name": "probe_it"}
    try:
        return render([_USER, answer, result])
    except RequestError:
        return None
