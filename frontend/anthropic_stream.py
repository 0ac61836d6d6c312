"""A stream in the words of Anthropic's Messages API: named events, and blocks that begin, grow and end."""

from collections.abc import Callable, Iterable

import msgspec

from frontend.anthropic_answer import INPUT, TEXT, THINKING, Block, Blocks, Delta, MessageBody, reason, usage
from frontend.errors import ApiError
from frontend.reading import condensed, ending_in, said_in
from frontend.register import Entry
from frontend.streams import Event

_PING = b'event: ping\ndata: {"type":"ping"}\n\n'
_DELTAS = {TEXT: ("text_delta", "text"), THINKING: ("thinking_delta", "thinking"), INPUT: ("input_json_delta", "partial_json")}
_encode = msgspec.json.Encoder().encode


class MessageStream:
    """A `frontend.sse.Wording`."""

    def __init__(self, entry: Entry, id_length: Callable[[], int | None]) -> None:
        """`id_length`: of the ids of the model's calls."""
        self._entry = entry
        self._run = entry.run
        self._id_length = id_length
        self._blocks = Blocks(None)
        self._ending: tuple[str | None, str | int | None] = None, None

    def opening(self) -> bytes:
        self._blocks = Blocks(self._id_length())
        message = MessageBody(id=self._entry.id, model=self._run.model, content=[], usage=usage(self._run, 0))
        return _event("message_start", message=message) + _PING

    def said(self, events: Iterable[Event]) -> bytes:
        parts: list[bytes] = []
        for _, came in events:
            parts += [self._step(step) for step in self._blocks.feed(said_in(came))]
            self._ending = ending_in(came) or self._ending
        return b"".join(parts)

    def said_late(self, events: Iterable[Event]) -> bytes:
        came = list(events)
        spoken = condensed(event for _, one in came for event in said_in(one))
        for _, one in came:
            self._ending = ending_in(one) or self._ending
        return b"".join([self._step(step) for step in self._blocks.feed(spoken)])

    def closing(self) -> bytes:
        stops = b"".join([self._step(step) for step in self._blocks.end()])
        why, found = reason(self._run, *self._ending)
        delta = {"stop_reason": why, "stop_sequence": found}
        return stops + _event("message_delta", delta=delta, usage=usage(self._run, self._run.completion_tokens)) + _event("message_stop")

    def failed(self, error: ApiError) -> bytes:
        return b"event: error\ndata: " + error.anthropic_body() + b"\n\n"

    def _step(self, step: Block | Delta | None) -> bytes:
        index = self._blocks.count - 1
        if step is None:
            return _event("content_block_stop", index=index)
        if not isinstance(step, tuple):
            return _event("content_block_start", index=index, content_block=step)
        name, field = _DELTAS[step[0]]
        return _event("content_block_delta", index=index, delta={"type": name, field: step[1]})


def _event(kind: str, **fields: object) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + _encode({"type": kind, **fields}) + b"\n\n"
