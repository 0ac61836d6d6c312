"""How text is dressed for the two generating endpoints: response objects, stream chunks, choices."""

from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from dialects.events import Content, Event, Markup
from frontend import logprobs
from frontend.calls import CallDelta, ToolCall, call_deltas, reasoning_of, whole_calls
from frontend.reading import Came, Said
from frontend.streams import Run
from messages.text import Ended, TextDelta, TokenLogprob

StopReason = str | int | None
Ids = list[int] | msgspec.UnsetType
PromptLogprobs = list[dict[str, logprobs.PromptEntry] | None] | msgspec.UnsetType


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    """`prompt_tokens_details` is known at the end, `completion_tokens_details` where reasoning is looked for."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | msgspec.UnsetType = msgspec.UNSET
    completion_tokens_details: CompletionTokensDetails | msgspec.UnsetType = msgspec.UNSET


def usage(run: Run) -> Usage:
    prompt, completion = run.prompt_tokens, run.completion_tokens
    return Usage(prompt, completion, prompt + completion, PromptTokensDetails(run.cached_tokens), _details(run))


def usage_so_far(run: Run) -> Usage:
    """Of all choices, while they run."""
    prompt, completion = run.prompt_tokens, run.generated_tokens
    return Usage(prompt, completion, prompt + completion, completion_tokens_details=_details(run))


def _details(run: Run) -> CompletionTokensDetails | msgspec.UnsetType:
    tokens = run.reasoning_tokens
    return msgspec.UNSET if tokens is None else CompletionTokensDetails(tokens)


class Piece:
    """What has come of one choice since the last piece (all of it when nothing is streamed). `finish` is set on the last one.

    `events`: what its text says, where it is read, without markup. `prompt`: logprobs of the prompt, and `prompt_ids` its tokens, on the first one.
    """

    def __init__(self, text: str = "") -> None:
        self._texts = [text]
        self.events: list[Event] = []
        self.logprobs: list[TokenLogprob] = []
        self.finish: str | None = None
        self.stop_reason: StopReason = None
        self.ids: list[int] = []
        self.prompt: list[TokenLogprob] = []
        self.prompt_ids: list[int] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def silent(self) -> bool:
        """Nothing of it is to be told."""
        return not (self.finish or self.events or self.logprobs or self.ids or any(self._texts))

    def add(self, came: Came) -> None:
        """What came next."""
        if isinstance(came, str):
            self._texts.append(came)
        elif isinstance(came, Said):
            self._read(came.events)
            if came.message is not None:
                self._extend(came.message)
            self.finish = came.finish or self.finish
        else:
            self._texts.append(came.text)
            self._extend(came)

    def _read(self, events: Iterable[Event]) -> None:
        for event in events:
            if not isinstance(event, Markup):
                self.events.append(event)
            if isinstance(event, Content):
                self._texts.append(event.text)

    def _extend(self, message: TextDelta | Ended) -> None:
        """Everything of `message` but its text."""
        self.logprobs.extend(message.logprobs)
        self.ids.extend(message.ids)
        self.prompt.extend(message.prompt)
        self.prompt_ids.extend(message.prompt_ids)
        if isinstance(message, Ended):
            self.finish, self.stop_reason = message.finish, message.stop_reason


def piece_of(came: Came) -> Piece:
    piece = Piece()
    piece.add(came)
    return piece


def merged(events: Iterable[tuple[int, Came]]) -> list[tuple[int, Piece]]:
    """One piece for each choice."""
    pieces: dict[int, Piece] = {}
    for index, came in events:
        pieces.setdefault(index, Piece()).add(came)
    return list(pieces.items())


class AssistantMessage(msgspec.Struct):
    """`content` is null where there are calls and nothing else. `reasoning` and `reasoning_content` are the same: clients read one or the other."""

    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


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
    """As AssistantMessage; of a call id, type and name come once."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[CallDelta] | None = None


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

    def __init__(self, with_logprobs: bool, extras: Extras = NO_EXTRAS, id_length: Callable[[], int | None] = lambda: None) -> None:
        """`id_length`: of the ids of the model's tool calls, where it matters."""
        self._with_logprobs = with_logprobs
        self._extras = extras
        self._id_length = id_length

    def opening(self, index: int) -> msgspec.Struct | None:
        return ChatChunkChoice(index, ChatDelta(role="assistant", content=""), None, None, None)

    def chunk(self, index: int, piece: Piece) -> msgspec.Struct:
        reasoning = reasoning_of(piece.events) or None
        calls = call_deltas(piece.events, self._id_length()) or None
        delta, ids = ChatDelta(None, piece.text or None, reasoning, reasoning, calls), self._extras.tokens(piece)
        return ChatChunkChoice(index, delta, self._logprobs(piece), piece.finish, piece.stop_reason, *ids)

    def whole(self, index: int, piece: Piece) -> msgspec.Struct:
        extras = self._extras.prompt(piece), *self._extras.tokens(piece)
        reasoning, calls = reasoning_of(piece.events) or msgspec.UNSET, whole_calls(piece.events, self._id_length()) or msgspec.UNSET
        message = AssistantMessage("assistant", None if calls and not piece.text else piece.text, None, reasoning, reasoning, calls)
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
