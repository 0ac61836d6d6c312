"""The `messages` of a request: which fields of a message are honoured, and how they travel to the tokenizer."""

from typing import Any

import msgspec

from frontend.errors import invalid
from frontend.refusals import MESSAGE, strip
from messages.request import ChatPrompt


def chat_prompt(messages: list[dict[str, Any]], add_generation_prompt: bool) -> ChatPrompt:
    """Messages as the tokenizer gets them: `role` and `content` alone. Raises ApiError 400 that names the message and the field."""
    return ChatPrompt([_message(message, f"messages[{number}]") for number, message in enumerate(messages)], add_generation_prompt)


def _message(message: dict[str, Any], where: str) -> dict[str, msgspec.Raw]:
    fields = strip(message, ("role", "content"), MESSAGE, f"{where}.")
    if not isinstance(fields.get("role"), str):
        raise invalid(f"{where}.role must be text.", f"{where}.role")
    _check_content(fields.get("content"), f"{where}.content")
    return {name: msgspec.Raw(msgspec.msgpack.encode(value)) for name, value in fields.items()}


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
