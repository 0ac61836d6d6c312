"""What the model's chat template sees of a conversation: messages as chat requests have them, made of items."""

from collections.abc import Iterable
from typing import Any

from frontend.responses.items import ASSISTANT, SYSTEM, FunctionCall, FunctionCallOutput, InputText, Item, Message, OutputText, ReasoningItem

Turn = dict[str, Any]
_ORDER = {"reasoning_content": 0, "content": 1, "tool_calls": 2}
"""In which a message of the assistant has its parts: what comes out of it begins another one."""


def turns(instructions: str | None, items: Iterable[Item]) -> list[Turn]:
    """With the instructions as the first message. Neighbours of the assistant are one message, as they were one answer."""
    made: list[Turn] = [] if instructions is None else [{"role": SYSTEM, "content": instructions}]
    open_: Turn | None = None
    for item in items:
        if isinstance(item, FunctionCallOutput):
            made.append({"role": "tool", "tool_call_id": item.call_id, "content": _content(item.output)})
            open_ = None
        elif isinstance(item, Message) and item.role != ASSISTANT:
            made.append({"role": item.role, "content": _content(item.content)})
            open_ = None
        else:
            if open_ is None or not _fits(open_, item):
                open_ = {"role": ASSISTANT}
                made.append(open_)
            _add(open_, item)
    for turn in made:
        if "tool_calls" not in turn:
            turn.setdefault("content", "")
    return made


def _part(item: Message | ReasoningItem | FunctionCall) -> str:
    if isinstance(item, Message):
        return "content"
    return "reasoning_content" if isinstance(item, ReasoningItem) else "tool_calls"


def _fits(turn: Turn, item: Message | ReasoningItem | FunctionCall) -> bool:
    name = _part(item)
    last = max((_ORDER[part] for part in turn if part in _ORDER), default=-1)
    return last < _ORDER[name] or (last == _ORDER[name] and name != "content")


def _add(turn: Turn, item: Message | ReasoningItem | FunctionCall) -> None:
    if isinstance(item, Message):
        turn["content"] = _content(item.content)
    elif isinstance(item, ReasoningItem):
        before = [turn["reasoning_content"]] if "reasoning_content" in turn else []
        turn["reasoning_content"] = "\n".join([*before, *(part.text for part in item.content)])
    else:
        call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
        turn.setdefault("tool_calls", []).append(call)


def _content(content: str | list[InputText] | list[InputText | OutputText]) -> str | list[dict[str, str]]:
    if isinstance(content, str):
        return content
    texts = [part.text for part in content]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
