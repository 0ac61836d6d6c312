"""Items of a conversation: how they come in, how they are kept, and what the model's chat template sees of them."""

import secrets
from collections.abc import Callable, Iterable
from sys import getsizeof
from typing import Any

import msgspec

from frontend.errors import invalid
from frontend.refusals import INPUT_MESSAGE, INPUT_PART, strip
from messages.request import ChatPrompt

ASSISTANT, SYSTEM = "assistant", "system"
ROLES = ("user", ASSISTANT, SYSTEM, "developer")
IN_PROGRESS, COMPLETED, INCOMPLETE = "in_progress", "completed", "incomplete"
MAX_ITEMS = 4096
ITEM_BYTES = 400
"""Of memory that an item takes besides its text, about."""


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """`annotations` and `logprobs` are always empty."""

    text: str
    annotations: list[None] = []
    logprobs: list[None] = []


Part = InputText | OutputText


class Message(msgspec.Struct, tag_field="type", tag="message"):
    """One turn, of whoever it is. `content` of the assistant is OutputText, of the others InputText."""

    id: str
    status: str
    role: str
    content: list[Part]


Item = Message
"""What a conversation is made of: a union, once there is more than messages."""


def new_id() -> str:
    """Of a message."""
    return f"msg_{secrets.token_hex(16)}"


def said(text: str, role: str, status: str = COMPLETED) -> Message:
    """A message of one text under a new id."""
    return Message(new_id(), status, role, [_part(role, text)])


def read_input(value: Any) -> list[Item]:
    """The `input` of a request. Raises ApiError 400, which names the part that is wrong."""
    if isinstance(value, str):
        return [said(value, "user")]
    if not isinstance(value, list):
        raise invalid("input must be a string or a list of items.", "input")
    if not value:
        raise invalid("input is empty.", "input")
    return [_item(item, f"input[{number}]") for number, item in enumerate(value)]


def memory(items: Iterable[Item]) -> int:
    """Bytes that they take, about."""
    return sum(ITEM_BYTES + sum(getsizeof(part.text) for part in item.content) for item in items)


def chat_prompt(instructions: str | None, items: Iterable[Item]) -> ChatPrompt:
    """The conversation as the tokenizer gets it, with the instructions as its first message."""
    first = [] if instructions is None else [_chat_message(SYSTEM, instructions)]
    return ChatPrompt(first + [_chat_message(item.role, _content(item)) for item in items])


def _content(message: Message) -> str | list[dict[str, str]]:
    texts = [part.text for part in message.content]
    return texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]


def _chat_message(role: str, content: object) -> dict[str, msgspec.Raw]:
    return {"role": msgspec.Raw(msgspec.msgpack.encode(role)), "content": msgspec.Raw(msgspec.msgpack.encode(content))}


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
    return Message(new_id(), COMPLETED, role, [_part(role, _text(part, f"{where}.content[{number}]")) for number, part in enumerate(content)])


_READERS: dict[str, Callable[[dict[str, Any], str], Item]] = {"message": _message}


def _part(role: str, text: str) -> Part:
    return OutputText(text) if role == ASSISTANT else InputText(text)


def _text(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") not in ("input_text", "output_text") or not isinstance(part.get("text"), str):
        sentence = f'{where} must be like {{"type": "input_text", "text": "..."}} or, of the assistant, "output_text"; nothing else is supported.'
        raise invalid(sentence, where, "unsupported_parameter")
    return str(strip(part, ("type", "text"), INPUT_PART, f"{where}.")["text"])
