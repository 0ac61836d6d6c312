"""The `input` of a request: which items there are, and which of their fields are honoured."""

from collections.abc import Callable
from typing import Any

from frontend.errors import invalid
from frontend.refusals import INPUT_CALL, INPUT_MESSAGE, INPUT_PART, INPUT_REASONING, INPUT_RESULT, strip
from frontend.responses.items import (
    CALL,
    MESSAGE,
    REASONING,
    RESULT,
    ROLES,
    FunctionCall,
    FunctionCallOutput,
    InputText,
    Item,
    Message,
    ReasoningItem,
    ReasoningText,
    new_id,
    part_of,
    said,
)
from frontend.responses.status import COMPLETED

MAX_CALL_ID = 256
_TEXTS = ("input_text", "output_text")


def read_input(value: Any, earlier: list[Item]) -> list[Item]:
    """The `input` of a request, behind what was said `earlier`. Raises ApiError 400, which names the part that is wrong."""
    if isinstance(value, str):
        return [*earlier, said(value, "user")]
    if not isinstance(value, list):
        raise invalid("input must be a string or a list of items.", "input")
    if not value:
        raise invalid("input is empty.", "input")
    items = [*earlier, *(_item(item, f"input[{number}]") for number, item in enumerate(value))]
    _check_results(items, len(earlier))
    return items


def _check_results(items: list[Item], earlier: int) -> None:
    calls: set[str] = set()
    for number, item in enumerate(items, -earlier):
        if isinstance(item, FunctionCall):
            calls.add(item.call_id)
        elif isinstance(item, FunctionCallOutput) and item.call_id not in calls:
            raise invalid(f"input[{number}].call_id: there is no function_call {item.call_id[:64]!r} before it.", f"input[{number}].call_id")


def _item(value: Any, where: str) -> Item:
    if not isinstance(value, dict):
        raise invalid(f"{where} must be an object.", where)
    kind = value.get("type")
    kind = "message" if kind is None else kind
    read = _READERS.get(kind) if isinstance(kind, str) else None
    if read is None:
        raise invalid(f"{where}.type is not supported at this value; it may be {', '.join(_READERS)}.", f"{where}.type", "unsupported_parameter")
    return read(value, where)


def _message(value: dict[str, Any], where: str) -> Message:
    fields = strip(value, ("type", "role", "content"), INPUT_MESSAGE, f"{where}.")
    role, content = fields.get("role"), fields.get("content")
    if role not in ROLES:
        raise invalid(f"{where}.role must be one of {', '.join(ROLES)}.", f"{where}.role")
    if isinstance(content, str):
        return said(content, role)
    if not isinstance(content, list) or not content:
        raise invalid(f"{where}.content must be text: a string or a list of text parts.", f"{where}.content")
    texts = [_text(part, f"{where}.content[{number}]", _TEXTS) for number, part in enumerate(content)]
    return Message(new_id(MESSAGE), COMPLETED, role, [part_of(role, text) for text in texts])


def _reasoning(value: dict[str, Any], where: str) -> ReasoningItem:
    content = strip(value, ("type", "content"), INPUT_REASONING, f"{where}.").get("content", [])
    if not isinstance(content, list):
        raise invalid(f"{where}.content must be a list of parts of the type reasoning_text.", f"{where}.content")
    texts = [_text(part, f"{where}.content[{number}]", ("reasoning_text",)) for number, part in enumerate(content)]
    return ReasoningItem(new_id(REASONING), COMPLETED, [ReasoningText(text) for text in texts])


def _call(value: dict[str, Any], where: str) -> FunctionCall:
    fields = strip(value, ("type", "call_id", "name", "arguments"), INPUT_CALL, f"{where}.")
    for name in ("name", "arguments"):
        if not isinstance(fields.get(name), str):
            raise invalid(f"{where}.{name} must be text.", f"{where}.{name}")
    return FunctionCall(new_id(CALL), COMPLETED, _call_id(fields, where), fields["name"], fields["arguments"])


def _result(value: dict[str, Any], where: str) -> FunctionCallOutput:
    fields = strip(value, ("type", "call_id", "output"), INPUT_RESULT, f"{where}.")
    output, place = fields.get("output"), f"{where}.output"
    if isinstance(output, list) and output:
        output = [InputText(_text(part, f"{place}[{number}]", ("input_text",))) for number, part in enumerate(output)]
    elif not isinstance(output, str):
        raise invalid(f"{place} must be text: a string or a list of parts of the type input_text.", place)
    return FunctionCallOutput(new_id(RESULT), COMPLETED, _call_id(fields, where), output)


def _call_id(fields: dict[str, Any], where: str) -> str:
    found = fields.get("call_id")
    if not isinstance(found, str) or not 1 <= len(found) <= MAX_CALL_ID:
        raise invalid(f"{where}.call_id must be text of 1 to {MAX_CALL_ID} characters.", f"{where}.call_id")
    return found


_READERS: dict[str, Callable[[dict[str, Any], str], Item]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _call,
    "function_call_output": _result,
}


def _text(part: Any, where: str, kinds: tuple[str, ...]) -> str:
    if not isinstance(part, dict) or part.get("type") not in kinds or not isinstance(part.get("text"), str):
        other = ' or, of the assistant, "output_text"' if len(kinds) > 1 else ""
        sentence = f'{where} must be like {{"type": "{kinds[0]}", "text": "..."}}{other}; nothing else is supported.'
        raise invalid(sentence, where, "unsupported_parameter")
    return str(strip(part, ("type", "text"), INPUT_PART, f"{where}.")["text"])
