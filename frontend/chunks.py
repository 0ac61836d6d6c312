"""A stream in OpenAI's words: chunks with a choice each, whose parts that never change are encoded once."""

from collections.abc import Iterable

import msgspec

from dialects.events import Content
from frontend.answers import Answer, Piece, merged, piece_of, usage, usage_so_far
from frontend.errors import ApiError
from frontend.reading import Said
from frontend.register import Entry
from frontend.schema import StreamOptions
from frontend.streams import Event

_DONE = b"data: [DONE]\n\n"
_MARK = "\ue000"


class Chunks:
    """A `frontend.sse.Wording` of a request with `choices` sequences."""

    def __init__(self, model: str, entry: Entry, shapes: Answer, choices: int, options: StreamOptions) -> None:
        self._run = entry.run
        self._shapes = shapes
        self._choices = choices
        self._options = options
        head = {"id": entry.id, "object": shapes.chunk_object, "created": entry.created, "model": model}
        self._head = b"data: " + msgspec.json.encode(head)[:-1] + b',"choices":['
        self._tail = b'],"usage":null}\n\n' if options.include_usage else b"]}\n\n"
        self._encode = msgspec.json.Encoder().encode
        self._around = [] if options.continuous_usage_stats else [self._frame(index) for index in range(choices)]

    def opening(self) -> bytes:
        openings = (self._shapes.opening(index) for index in range(self._choices))
        return b"".join([self._event(choice) for choice in openings if choice is not None])

    def said(self, events: Iterable[Event]) -> bytes:
        encode, around = self._encode, self._around
        parts: list[bytes] = []
        for index, came in events:
            text = _text_alone(came)
            if around and text is not None:
                before, after = around[index]
                parts += (before, encode(text), after)
            else:
                parts.append(self._chunk(index, piece_of(came)))
        return b"".join(parts)

    def said_late(self, events: Iterable[Event]) -> bytes:
        return b"".join([self._chunk(index, piece) for index, piece in merged(events)])

    def closing(self) -> bytes:
        if not self._options.include_usage:
            return _DONE
        return self._head + b'],"usage":' + self._encode(usage(self._run)) + b"}\n\n" + _DONE

    def failed(self, error: ApiError) -> bytes:
        return b"data: " + error.body() + b"\n\n" + _DONE

    def _chunk(self, index: int, piece: Piece) -> bytes:
        return b"" if piece.silent else self._event(self._shapes.chunk(index, piece))

    def _frame(self, index: int) -> tuple[bytes, bytes]:
        """What stands before and after the text in a chunk of nothing else."""
        before, _, after = self._event(self._shapes.chunk(index, Piece(_MARK))).rpartition(self._encode(_MARK))
        return before, after

    def _event(self, choice: msgspec.Struct) -> bytes:
        if self._options.continuous_usage_stats:
            return self._head + self._encode(choice) + b'],"usage":' + self._encode(usage_so_far(self._run)) + b"}\n\n"
        return self._head + self._encode(choice) + self._tail


def _text_alone(came: object) -> str | None:
    """The text of what is nothing but text of an answer."""
    if isinstance(came, str):
        return came
    if isinstance(came, Said) and came.message is None and len(came.events) == 1 and isinstance(event := came.events[0], Content):
        return event.text
    return None
