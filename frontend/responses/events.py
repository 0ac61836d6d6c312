"""The typed events of a response's stream, and those of one response as they are kept for clients that come back for them."""

import asyncio
from sys import getsizeof
from typing import get_args

import msgspec

from frontend.responses.body import ResponseBody
from frontend.responses.items import OutputItem, OutputText, ReasoningText, Score, score_bytes

MAX_EVENTS = 16_384
"""Of one response that are kept; older ones are gone for who comes back."""
MAX_EVENT_BYTES = 8 << 20
"""The same of their memory, about."""
EVENT_BYTES = 160
"""Of memory that one takes besides its text and log probabilities, about."""
Part = OutputText | ReasoningText


class ResponseCreated(msgspec.Struct, tag_field="type", tag="response.created"):
    sequence_number: int
    response: ResponseBody


class ResponseQueued(msgspec.Struct, tag_field="type", tag="response.queued"):
    sequence_number: int
    response: ResponseBody


class ResponseInProgress(msgspec.Struct, tag_field="type", tag="response.in_progress"):
    sequence_number: int
    response: ResponseBody


class OutputItemAdded(msgspec.Struct, tag_field="type", tag="response.output_item.added"):
    sequence_number: int
    output_index: int
    item: OutputItem


class ContentPartAdded(msgspec.Struct, tag_field="type", tag="response.content_part.added"):
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    part: Part


class OutputTextDelta(msgspec.Struct, tag_field="type", tag="response.output_text.delta"):
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[Score] = []


class OutputTextDone(msgspec.Struct, tag_field="type", tag="response.output_text.done"):
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[Score] = []


class ReasoningTextDelta(msgspec.Struct, tag_field="type", tag="response.reasoning_text.delta"):
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningTextDone(msgspec.Struct, tag_field="type", tag="response.reasoning_text.done"):
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    text: str


class FunctionCallArgumentsDelta(msgspec.Struct, tag_field="type", tag="response.function_call_arguments.delta"):
    sequence_number: int
    item_id: str
    output_index: int
    delta: str


class FunctionCallArgumentsDone(msgspec.Struct, tag_field="type", tag="response.function_call_arguments.done"):
    sequence_number: int
    item_id: str
    output_index: int
    name: str
    arguments: str


class ContentPartDone(msgspec.Struct, tag_field="type", tag="response.content_part.done"):
    sequence_number: int
    item_id: str
    output_index: int
    content_index: int
    part: Part


class OutputItemDone(msgspec.Struct, tag_field="type", tag="response.output_item.done"):
    sequence_number: int
    output_index: int
    item: OutputItem


class ResponseCompleted(msgspec.Struct, tag_field="type", tag="response.completed"):
    sequence_number: int
    response: ResponseBody


class ResponseIncomplete(msgspec.Struct, tag_field="type", tag="response.incomplete"):
    sequence_number: int
    response: ResponseBody


class ResponseFailed(msgspec.Struct, tag_field="type", tag="response.failed"):
    sequence_number: int
    response: ResponseBody


class StreamError(msgspec.Struct, tag_field="type", tag="error"):
    """The stream ends without the response's end being in it: it was cancelled, or the client has fallen too far behind."""

    sequence_number: int
    code: str
    message: str
    param: str | None = None


Event = (
    ResponseCreated | ResponseQueued | ResponseInProgress | OutputItemAdded | ContentPartAdded | OutputTextDelta | OutputTextDone
    | ReasoningTextDelta | ReasoningTextDone | FunctionCallArgumentsDelta | FunctionCallArgumentsDone | ContentPartDone | OutputItemDone
    | ResponseCompleted | ResponseIncomplete | ResponseFailed | StreamError
)  # fmt: skip

_encode = msgspec.json.Encoder().encode
_BEGINS = {kind: f"event: {kind.__struct_config__.tag}\ndata: ".encode() for kind in get_args(Event)}


def wire(event: Event) -> bytes:
    """The event as it is sent."""
    return _BEGINS[type(event)] + _encode(event) + b"\n\n"


def weight(event: Event) -> int:
    """Bytes of memory that it takes, about; what it shares with the response is not counted."""
    if isinstance(event, OutputTextDelta):
        return EVENT_BYTES + getsizeof(event.delta) + score_bytes(event.logprobs)
    return EVENT_BYTES + (getsizeof(event.delta) if isinstance(event, ReasoningTextDelta | FunctionCallArgumentsDelta) else 0)


class EventLog:
    """The last events of one response, `limit` of them and `most` bytes or up to twice that, and who waits for the next. Events are numbered from 0
    on without a gap."""

    def __init__(self, limit: int = MAX_EVENTS, most: int = MAX_EVENT_BYTES) -> None:
        self.first = 0
        self.ended = False
        self._limit = limit
        self._most = most
        self._bytes = 0
        self._events: list[Event] = []
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def next(self) -> int:
        """The number of the event that comes next."""
        return self.first + len(self._events)

    def add(self, event: Event) -> None:
        self._events.append(event)
        self._bytes += weight(event)
        if len(self._events) >= 2 * self._limit or self._bytes >= 2 * self._most:
            self._forget_half()
        self._wake()

    def _forget_half(self) -> None:
        half = len(self._events) // 2
        self.first += half
        del self._events[:half]
        self._bytes = sum(map(weight, self._events))

    def end(self) -> None:
        """No more come."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def since(self, number: int, most: int) -> list[Event] | None:
        """At most so many events from this number on; None when it is gone."""
        return None if number < self.first else self._events[number - self.first : number - self.first + most]

    async def more(self, number: int) -> None:
        """Wait until there is an event of this number, or no more comes."""
        while self.next <= number and not self.ended:
            future = asyncio.get_running_loop().create_future()
            self._waiting.append(future)
            await future

    def memory(self) -> int:
        """Bytes that they take, about."""
        return self._bytes
