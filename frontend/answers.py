"""How text is dressed for the two generating endpoints: response objects, stream chunks, choices."""

from typing import Protocol

import msgspec

from frontend import logprobs
from frontend.streams import Run
from messages.text import Ended, TextDelta, TokenLogprob

StopReason = str | int | None
Ids = list[int] | msgspec.UnsetType
PromptLogprobs = list[dict[str, logprobs.PromptEntry] | None] | msgspec.UnsetType


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    """`prompt_tokens_details` is known at the end."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | msgspec.UnsetType = msgspec.UNSET


def usage(run: Run) -> Usage:
    prompt, completion = run.prompt_tokens, run.completion_tokens
    return Usage(prompt, completion, prompt + completion, PromptTokensDetails(run.cached_tokens))


def usage_so_far(run: Run) -> Usage:
    """Of all choices, while they run."""
    return Usage(run.prompt_tokens, run.generated_tokens, run.prompt_tokens + run.generated_tokens)


class Piece(msgspec.Struct):
    """Text of one choice since the last piece (the whole text when nothing is streamed). `finish` is set on the last one.

    `prompt`: logprobs of the prompt, and `prompt_ids` its tokens, on the first one.
    """

    text: str
    logprobs: list[TokenLogprob]
    finish: str | None = None
    stop_reason: StopReason = None
    ids: list[int] = []
    prompt: list[TokenLogprob] = []
    prompt_ids: list[int] = []

    @classmethod
    def of(cls, message: TextDelta | Ended) -> "Piece":
        piece = cls(message.text, [])
        piece.extend(message)
        return piece

    def extend(self, message: TextDelta | Ended) -> None:
        """Everything of `message` but its text."""
        self.logprobs.extend(message.logprobs)
        self.ids.extend(message.ids)
        self.prompt.extend(message.prompt)
        self.prompt_ids.extend(message.prompt_ids)
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
    prompt_logprobs: PromptLogprobs = msgspec.UNSET
    token_ids: Ids = msgspec.UNSET
    prompt_token_ids: Ids = msgspec.UNSET


class ChatDelta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: logprobs.ChatLogprobs | None
    finish_reason: str | None
    stop_reason: StopReason
    token_ids: Ids = msgspec.UNSET
    prompt_token_ids: Ids = msgspec.UNSET


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    logprobs: logprobs.CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: StopReason
    prompt_logprobs: PromptLogprobs = msgspec.UNSET
    token_ids: Ids = msgspec.UNSET
    prompt_token_ids: Ids = msgspec.UNSET


class Extras(msgspec.Struct, frozen=True):
    """What else a request asked for: the alternatives of its prompt's logprobs (-1: none), token ids."""

    prompt_logprobs: int = -1
    ids: bool = False

    def prompt(self, piece: Piece) -> PromptLogprobs:
        return logprobs.prompt(piece.prompt, self.prompt_logprobs) if self.prompt_logprobs >= 0 else msgspec.UNSET

    def tokens(self, piece: Piece) -> tuple[Ids, Ids]:
        """Of the answer's piece, and of the prompt."""
        if not self.ids:
            return msgspec.UNSET, msgspec.UNSET
        return piece.ids, piece.prompt_ids or msgspec.UNSET


NO_EXTRAS = Extras()


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

    def __init__(self, with_logprobs: bool, extras: Extras = NO_EXTRAS) -> None:
        self._with_logprobs = with_logprobs
        self._extras = extras

    def opening(self, index: int) -> msgspec.Struct | None:
        return ChatChunkChoice(index, ChatDelta(role="assistant", content=""), None, None, None)

    def chunk(self, index: int, piece: Piece) -> msgspec.Struct:
        delta, ids = ChatDelta(content=piece.text or None), self._extras.tokens(piece)
        return ChatChunkChoice(index, delta, self._logprobs(piece), piece.finish, piece.stop_reason, *ids)

    def whole(self, index: int, piece: Piece) -> msgspec.Struct:
        message, extras = AssistantMessage("assistant", piece.text), (self._extras.prompt(piece), *self._extras.tokens(piece))
        return ChatChoice(index, message, self._logprobs(piece), piece.finish, piece.stop_reason, *extras)

    def _logprobs(self, piece: Piece) -> logprobs.ChatLogprobs | None:
        if not self._with_logprobs or (piece.finish is None and not piece.logprobs):
            return None
        return logprobs.chat(piece.logprobs)


class CompletionAnswer:
    """`text_completion`: the same object for the whole and for chunks."""

    id_prefix = "cmpl-"
    whole_object = "text_completion"
    chunk_object = "text_completion"

    def __init__(self, logprobs_: int | None, echo: bool = False, extras: Extras = NO_EXTRAS) -> None:
        """`logprobs_`: how many alternatives, None for no logprobs."""
        self._alternatives = logprobs_
        self._echo = echo
        self._extras = extras
        self._offsets: dict[int, logprobs.Offsets] = {}

    def opening(self, index: int) -> msgspec.Struct | None:
        return None

    def chunk(self, index: int, piece: Piece) -> msgspec.Struct:
        extras = self._extras.prompt(piece), *self._extras.tokens(piece)
        return CompletionChoice(index, piece.text, self._logprobs(index, piece), piece.finish, piece.stop_reason, *extras)

    def whole(self, index: int, piece: Piece) -> msgspec.Struct:
        return self.chunk(index, piece)

    def _logprobs(self, index: int, piece: Piece) -> logprobs.CompletionLogprobs | None:
        tokens = piece.prompt + piece.logprobs if self._echo else piece.logprobs
        if self._alternatives is None or (piece.finish is None and not tokens):
            return None
        return logprobs.completion(tokens, self._offsets.setdefault(index, logprobs.Offsets()), self._alternatives)
