"""Tool calls in OpenAI's shapes, made from what has been read of an answer."""

import secrets
import string
from collections.abc import Iterable

import msgspec

from dialects.events import Arguments, CallStart, Event, Reasoning

ID_PREFIX, ID_CHARACTERS = "call_", 24
_ALPHABET = string.ascii_letters + string.digits


class Function(msgspec.Struct):
    """`arguments` is JSON text as the model wrote it; an answer that was cut off may end within."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct):
    id: str
    type: str
    function: Function


class FunctionDelta(msgspec.Struct):
    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str = ""


class CallDelta(msgspec.Struct):
    index: int
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    function: FunctionDelta = msgspec.field(default_factory=FunctionDelta)


def new_id(prefix: str = ID_PREFIX, length: int | None = None) -> str:
    """`length`: of the whole id, which has letters and digits only then."""
    if length is None:
        return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(ID_CHARACTERS))
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def call_deltas(events: Iterable[Event], id_length: int | None) -> list[CallDelta]:
    """One for each call there is something of."""
    found: dict[int, CallDelta] = {}
    parts: dict[int, list[str]] = {}
    for event in events:
        if isinstance(event, CallStart):
            found[event.index] = CallDelta(event.index, new_id(length=id_length), "function", FunctionDelta(event.name))
        elif isinstance(event, Arguments):
            found.setdefault(event.index, CallDelta(event.index))
            parts.setdefault(event.index, []).append(event.text)
    for index, texts in parts.items():
        found[index].function.arguments = "".join(texts)
    return list(found.values())


def whole_calls(events: Iterable[Event], id_length: int | None) -> list[ToolCall]:
    """Of a whole answer."""
    named = ((call.id, call.function) for call in call_deltas(events, id_length))
    return [ToolCall(str(id_), "function", Function(str(function.name), function.arguments)) for id_, function in named]


def reasoning_of(events: Iterable[Event]) -> str:
    return "".join([event.text for event in events if isinstance(event, Reasoning)])
