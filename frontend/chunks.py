"""A stream in OpenAI's words: chunks with a choice each, whose parts that never change are encoded once."""

from collections.abc import Iterable

import msgspec

from dialects.events import Content, Reasoning
from frontend.answers import Answer, Piece, merged, piece_of, usage, usage_so_far
from frontend.errors import ApiError
from frontend.reading import Said
from frontend.register import Entry
from frontend.schema import StreamOptions
from frontend.streams import Event

_DONE = b"data: [DONE]\n\n"
_MARK = "\ue000"
Kind = type[Content] | type[Reasoning]


class Chunks:
    """A `frontend.sse.Wording` of a request with `choices` sequences."""

    def __init__(self, entry: Entry, shapes: Answer, choices: int, options: StreamOptions) -> None:
        self._entry = entry
        self._run = entry.run
        self._shapes = shapes
        self._choices = choices
        self._options = options
        self._head = b""
        self._tail = b'],"usage":null}\n\n' if options.include_usage else b"]}\n\n"
        self._encode = msgspec.json.Encoder().encode
        self._frames: dict[Kind, list[list[bytes]]] = {}

    def opening(self) -> bytes:
        head = {"id": self._entry.id, "object": self._shapes.chunk_object, "created": self._entry.created, "model": self._run.model}
        self._head = b"data: " + msgspec.json.encode(head)[:-1] + b',"choices":['
        if not self._options.continuous_usage_stats:
            self._frames = {kind: self._framed(kind) for kind in (Content, Reasoning)}
        openings = (self._shapes.opening(index) for index in range(self._choices))
        return b"".join([self._event(choice) for choice in openings if choice is not None])

    def said(self, events: Iterable[Event]) -> bytes:
        encode, frames = self._encode, self._frames
        parts: list[bytes] = []
        for index, came in events:
            kind, text = _one_text(came)
            if kind is not None and frames:
                parts.append(encode(text).join(frames[kind][index]))
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

    def _framed(self, kind: Kind) -> list[list[bytes]]:
        """For each choice what stands around a text in a chunk of nothing else: chat says reasoning twice."""
        pieces = (piece_of(Said([kind(_MARK)])) for _ in range(self._choices))
        return [self._event(self._shapes.chunk(index, piece)).split(self._encode(_MARK)) for index, piece in enumerate(pieces)]

    def _event(self, choice: msgspec.Struct) -> bytes:
        if self._options.continuous_usage_stats:
            return self._head + self._encode(choice) + b'],"usage":' + self._encode(usage_so_far(self._run)) + b"}\n\n"
        return self._head + self._encode(choice) + self._tail


def _one_text(came: object) -> tuple[Kind | None, str]:
    """The text of what is nothing but text of an answer, or of its reasoning, and which of them."""
    if isinstance(came, str):
        return Content, came
    if isinstance(came, Said) and came.message is None and len(came.events) == 1:
        event = came.events[0]
        if isinstance(event, Content | Reasoning):
            return type(event), event.text
    return None, ""
