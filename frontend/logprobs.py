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


class CompletionLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
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


def completion(tokens: list[TokenLogprob], offsets: Offsets) -> CompletionLogprobs:
    return CompletionLogprobs(
        [shown(token.piece) for token in tokens],
        [bounded(token.logprob) for token in tokens],
        [_alternatives(token) for token in tokens],
        [offsets.next(token.piece) for token in tokens],
    )


def _alternatives(token: TokenLogprob) -> dict[str, float]:
    """Text to log probability, the chosen token included; of tokens that read the same the likeliest stays."""
    found: dict[str, float] = {}
    for _, piece, logprob in token.top:
        found.setdefault(shown(piece), bounded(logprob))
    found.setdefault(shown(token.piece), bounded(token.logprob))
    return found
