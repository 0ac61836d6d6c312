"""Log probabilities in OpenAI's two shapes. Numbers are always finite and at most 0: impossible tokens read -9999."""

import codecs
import math

import msgspec

from messages.text import TokenLogprob

FLOOR = -9999.0


class TopEntry(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatEntry(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopEntry]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatEntry]


class PromptEntry(msgspec.Struct):
    """vLLM's shape; `rank` 1 is the likeliest."""

    logprob: float
    rank: int
    decoded_token: str


class CompletionLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


def bounded(value: float) -> float:
    return FLOOR if math.isnan(value) else min(max(value, FLOOR), 0.0)


def shown(piece: bytes) -> str:
    """A token's bytes as text; bytes that are not whole characters become U+FFFD (the `bytes` field has them exactly)."""
    return piece.decode(errors="replace")


def chat(tokens: list[TokenLogprob]) -> ChatLogprobs:
    return ChatLogprobs([_chat_entry(token) for token in tokens])


def _chat_entry(token: TokenLogprob) -> ChatEntry:
    top = [TopEntry(shown(piece), bounded(logprob), list(piece)) for _, piece, logprob in token.top]
    return ChatEntry(shown(token.piece), bounded(token.logprob), list(token.piece), top)


class Offsets:
    """Counts characters of one choice's text token by token; a character split over tokens counts where it ends."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._count = 0

    def next(self, piece: bytes) -> int:
        """Where the text of `piece` begins, in characters from the start of the generated text."""
        start = self._count
        self._count += len(self._decoder.decode(piece))
        return start


def completion(tokens: list[TokenLogprob], offsets: Offsets, count: int) -> CompletionLogprobs:
    """`count` alternatives at most. The first token of a prompt has null for all."""
    first = [is_first(token) for token in tokens]
    return CompletionLogprobs(
        [shown(token.piece) for token in tokens],
        [None if none else bounded(token.logprob) for token, none in zip(tokens, first, strict=True)],
        [None if none else _alternatives(token, count) for token, none in zip(tokens, first, strict=True)],
        [offsets.next(b"" if token.hidden else token.piece) for token in tokens],
    )


def is_first(token: TokenLogprob) -> bool:
    """Nothing comes before it, so that it has no logprob."""
    return math.isnan(token.logprob) and not token.top


def prompt(tokens: list[TokenLogprob], count: int) -> list[dict[str, PromptEntry] | None]:
    """By position, then by token id: the token and `count` alternatives. One that is not among them comes behind all that are as likely."""
    return [None if is_first(token) else _entries(token, count) for token in tokens]


def _entries(token: TokenLogprob, count: int) -> dict[str, PromptEntry]:
    found = {str(id_): PromptEntry(bounded(logprob), rank, shown(piece)) for rank, (id_, piece, logprob) in enumerate(token.top, 1)}
    own = found.get(str(token.token)) or PromptEntry(bounded(token.logprob), max(token.rank, len(token.top) + 1), shown(token.piece))
    return dict(list(found.items())[:count]) | {str(token.token): own}


def _alternatives(token: TokenLogprob, count: int) -> dict[str, float]:
    """Text to log probability, the chosen token included; of tokens that read the same the likeliest stays."""
    found: dict[str, float] = {}
    for _, piece, logprob in token.top[:count]:
        found.setdefault(shown(piece), bounded(logprob))
    found.setdefault(shown(token.piece), bounded(token.logprob))
    return found
