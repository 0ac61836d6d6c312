"""How text is dressed for the two generating endpoints: response objects, stream chunks, choices."""

from typing import Protocol

import msgspec

from frontend import logprobs
from frontend.streams import Run
from messages.text import Ended, TextDelta, TokenLogprob

StopReason = str | int | None


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


def usage(run: Run) -> Usage:
    prompt, completion = run.prompt_tokens, run.completion_tokens
    return Usage(prompt, completion, prompt + completion, PromptTokensDetails(run.cached_tokens))


class Piece(msgspec.Struct):
    """Text of one choice since the last piece (the whole text when nothing is streamed). `finish` is set on the last one."""

    text: str
    logprobs: list[TokenLogprob]
    finish: str | None = None
    stop_reason: StopReason = None

    @classmethod
    def of(cls, message: TextDelta | Ended) -> "Piece":
        piece = cls(message.text, [])
        piece.extend(message)
        return piece

    def extend(self, message: TextDelta | Ended) -> None:
        """Everything of `message` but its text."""
        self.logprobs.extend(message.logprobs)
        if isinstance(message, Ended):
            self.finish, self.stop_reason = message.finish, message.stop_reason


class AssistantMessage(msgspec.Struct):
    role: str
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct):
    index: int
    message: AssistantMessage
    logprobs: logprobs.ChatLogprobs | None
    finish_reason: str | None
    stop_reason: StopReason


class ChatDelta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: logprobs.ChatLogprobs | None
    finish_reason: str | None
    stop_reason: StopReason


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: logprobs.CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: StopReason


class Answer(Protocol):
    """One endpoint's shapes. `id_prefix` begins the response id."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def opening(self, index: int) -> msgspec.Struct | None:
        """The choice of the chunk that opens a stream, if there is one."""

    def chunk(self, index: int, piece: Piece) -> msgspec.Struct:
        """The choice of a stream chunk."""

    def whole(self, index: int, piece: Piece) -> msgspec.Struct:
        """The choice of an answer that is not streamed."""


class ChatAnswer:
    """`chat.completion`: a role first, then content."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, with_logprobs: bool) -> None:
        self._with_logprobs = with_logprobs

    def opening(self, index: int) -> msgspec.Struct | None:
        return ChatChunkChoice(index, ChatDelta(role="assistant", content=""), None, None, None)

    def chunk(self, index: int, piece: Piece) -> msgspec.Struct:
        return ChatChunkChoice(index, ChatDelta(content=piece.text or None), self._logprobs(piece), piece.finish, piece.stop_reason)

    def whole(self, index: int, piece: Piece) -> msgspec.Struct:
        return ChatChoice(index, AssistantMessage("assistant", piece.text), self._logprobs(piece), piece.finish, piece.stop_reason)

    def _logprobs(self, piece: Piece) -> logprobs.ChatLogprobs | None:
        if not self._with_logprobs or (piece.finish is None and not piece.logprobs):
            return None
        return logprobs.chat(piece.logprobs)


class CompletionAnswer:
    """`text_completion`: the same object for the whole and for chunks."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, with_logprobs: bool) -> None:
        self._with_logprobs = with_logprobs
        self._offsets: dict[int, logprobs.Offsets] = {}

    def opening(self, index: int) -> msgspec.Struct | None:
        return None

    def chunk(self, index: int, piece: Piece) -> msgspec.Struct:
        return CompletionChoice(index, piece.text, self._logprobs(index, piece), piece.finish, piece.stop_reason)

    def whole(self, index: int, piece: Piece) -> msgspec.Struct:
        return self.chunk(index, piece)

    def _logprobs(self, index: int, piece: Piece) -> logprobs.CompletionLogprobs | None:
        if not self._with_logprobs or (piece.finish is None and not piece.logprobs):
            return None
        return logprobs.completion(piece.logprobs, self._offsets.setdefault(index, logprobs.Offsets()))
