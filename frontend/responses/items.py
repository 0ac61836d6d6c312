"""Items of a conversation, as they are kept and answered."""

import secrets
from collections.abc import Iterable
from sys import getsizeof
from typing import Annotated, TypeVar

import msgspec

from frontend.responses.status import COMPLETED

AnyItem = TypeVar("AnyItem", bound="Item")
ASSISTANT, SYSTEM = "assistant", "system"
ROLES = ("user", ASSISTANT, SYSTEM, "developer")
MESSAGE, REASONING, CALL, RESULT = "msg", "rs", "fc", "fco"
"""What begins the ids of each kind."""
MAX_ITEMS = 4096
ITEM_BYTES = 400
"""Of memory that an item takes besides its text, about."""
SCORE_BYTES = 80
"""Of memory that the log probability of a token takes besides its JSON, about."""

_SCORE = {
    "type": "object",
    "description": "A token of the text with its log probability, and the likeliest alternatives in its place.",
    "properties": {
        "token": {"type": "string"},
        "logprob": {"type": "number"},
        "bytes": {"type": "array", "items": {"type": "integer"}},
        "top_logprobs": {"type": "array", "items": {"type": "object"}},
    },
}
Score = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema=_SCORE)]
"""JSON, made once: it goes out with the delta, with the part and with the response, and is kept."""


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """`annotations` is always empty, `logprobs` unless they were asked for."""

    text: str
    annotations: list[None] = []
    logprobs: list[Score] = []


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str


Part = InputText | OutputText


class Message(msgspec.Struct, tag_field="type", tag="message"):
    """One turn, of whoever it is. `content` of the assistant is OutputText, of the others InputText."""

    id: str
    status: str
    role: str
    content: list[Part]


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """What the model thought before it went on. There are no summaries."""

    id: str
    status: str
    content: list[ReasoningText]
    summary: list[None] = []
    encrypted_content: None = None


class FunctionCall(msgspec.Struct, tag_field="type", tag="function_call"):
    """`arguments` is JSON text as the model wrote it; of an incomplete one it may end within. The result names `call_id`."""

    id: str
    status: str
    call_id: str
    name: str
    arguments: str


class FunctionCallOutput(msgspec.Struct, tag_field="type", tag="function_call_output"):
    """The result of a call."""

    id: str
    status: str
    call_id: str
    output: str | list[InputText]


OutputItem = Message | ReasoningItem | FunctionCall
Item = OutputItem | FunctionCallOutput


def new_id(kind: str) -> str:
    """Of an item: `kind` is MESSAGE, REASONING, CALL or RESULT."""
    return f"{kind}_{secrets.token_hex(16)}"


def said(text: str, role: str, status: str = COMPLETED) -> Message:
    """A message of one text under a new id."""
    return Message(new_id(MESSAGE), status, role, [part_of(role, text)])


def part_of(role: str, text: str) -> Part:
    """Text of a message from `role`."""
    return OutputText(text) if role == ASSISTANT else InputText(text)


def bare(item: AnyItem) -> AnyItem:
    """Without log probabilities."""
    if not isinstance(item, Message) or item.role != ASSISTANT:
        return item
    return msgspec.structs.replace(item, content=[OutputText(part.text) for part in item.content])


def memory(items: Iterable[Item]) -> int:
    """Bytes that they take, about."""
    return sum(ITEM_BYTES + sum(map(getsizeof, _texts(item))) + _scores(item) for item in items)


def score_bytes(scores: Iterable[Score]) -> int:
    """Bytes that these take, about."""
    return sum(SCORE_BYTES + memoryview(score).nbytes for score in scores)


def _texts(item: Item) -> list[str]:
    if isinstance(item, FunctionCall):
        return [item.call_id, item.name, item.arguments]
    if isinstance(item, FunctionCallOutput):
        return [item.call_id, *([item.output] if isinstance(item.output, str) else [part.text for part in item.output])]
    return [part.text for part in item.content]


def _scores(item: Item) -> int:
    return sum(score_bytes(part.logprobs) for part in item.content if isinstance(part, OutputText)) if isinstance(item, Message) else 0
