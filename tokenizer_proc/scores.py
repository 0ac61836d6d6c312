"""The logprobs of one prompt, or its embedding, which come in parts before the first token of its answer."""

import math

import numpy as np

from messages.request import Generate, TextPrompt
from messages.text import TokenLogprob
from messages.tokens import PromptScores
from tokenizer_proc.pieces import Pieces
from transport.columns import F32, ColumnError, pack_f32, view_f32, view_i32


def hidden_positions(request: Generate, ids: list[int], pieces: Pieces) -> frozenset[int]:
    """Where the prompt has tokens that its echo does not show: around what a client wrote the special tokens that were put there, of what is decoded
    from its ids those that are skipped."""
    if isinstance(request.prompt, TextPrompt) and request.truncate is None:
        text = request.prompt.text.encode()
        ends = ((0, text.startswith), (len(ids) - 1, text.endswith))
        return frozenset(at for at, shows in ends if ids[at] in pieces.special and not shows(pieces.of[ids[at]]))
    return frozenset(at for at, token in enumerate(ids) if request.skip_special_tokens and token in pieces.special)


class Scoring:
    """Of the tokens of `prompt`, the first of which has none. `hidden`: positions of those that leave no text."""

    def __init__(self, prompt: list[int], pieces: Pieces, hidden: frozenset[int] = frozenset()) -> None:
        self._prompt = prompt
        self._of = pieces.of
        self._hidden = hidden
        self._known = [self._logprob(0, math.nan, [])]

    @property
    def complete(self) -> bool:
        return len(self._known) == len(self._prompt)

    def take(self) -> list[TokenLogprob]:
        """All of them the first time, then nothing."""
        known, self._prompt, self._known = self._known, [], []
        return known

    def add(self, message: PromptScores) -> None:
        """Raises ColumnError when it is not what follows, or a value is out of bounds."""
        chosen, first = view_f32(message.chosen).tolist(), message.start + 1
        if first != len(self._known) or not chosen or first + len(chosen) > len(self._prompt) or message.top < 0:
            raise ColumnError(f"{len(chosen)} prompt logprobs from {first} on, where {len(self._known)} of {len(self._prompt)} are known")
        size = message.top * len(chosen)
        ids, values = view_i32(message.top_ids, size).tolist(), view_f32(message.top_values, size).tolist()
        if ids and not 0 <= min(ids) <= max(ids) < len(self._of):
            raise ColumnError("a token id is outside the vocabulary")
        ranks = view_i32(message.ranks, len(chosen)).tolist()
        for number, (logprob, rank) in enumerate(zip(chosen, ranks, strict=True)):
            part = slice(number * message.top, (number + 1) * message.top)
            top = [(token, self._of[token], value) for token, value in zip(ids[part], values[part], strict=True)]
            self._known.append(self._logprob(first + number, logprob, top, rank))

    def _logprob(self, position: int, logprob: float, top: list[tuple[int, bytes, float]], rank: int = 0) -> TokenLogprob:
        token = self._prompt[position]
        return TokenLogprob(token, self._of[token], logprob, top, position in self._hidden, rank)


class Embedding:
    """The mean of the last hidden states at `positions` of them (1: the last alone), divided by its length."""

    def __init__(self, positions: int) -> None:
        self._missing = positions
        self._sum: F32 | None = None

    @property
    def complete(self) -> bool:
        return not self._missing

    def add(self, message: PromptScores) -> None:
        """Raises ColumnError when it is not what follows."""
        states = view_f32(message.states)
        if not 0 < message.count <= self._missing or not states.size or (self._sum is not None and states.size != self._sum.size):
            raise ColumnError(f"{states.size} hidden values of {message.count} positions, where {self._missing} are missing")
        self._missing -= message.count
        self._sum = states if self._sum is None else self._sum + states

    def vector(self) -> bytes:
        """f32; zeros stay zeros. Once it is complete."""
        if self._sum is None:
            raise ValueError("an embedding of no states")
        length = float(np.linalg.norm(self._sum.astype(np.float64)))
        return pack_f32(self._sum / np.float32(length) if length else self._sum)
