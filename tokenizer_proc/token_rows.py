"""The columns of a `Tokens` message as rows, checked before any of them is acted on."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from messages.text import TokenLogprob
from messages.tokens import FINISH_ERROR, LogprobColumns, Tokens
from tokenizer_proc.pieces import Pieces
from transport.columns import ColumnError, view_f32, view_i32, view_i64, view_u8


class TokenRow(NamedTuple):
    """One new token of one sequence, the `position`-th generated one from 0; `token` is -1 when `finish` is FINISH_ERROR."""

    key: int
    token: int
    finish: int
    position: int
    logprob: TokenLogprob | None


class Times(NamedTuple):
    """Seconds a sequence waited in the scheduler's line and then took to its first token."""

    queued: float
    prefilled: float


def read_times(message: Tokens) -> dict[int, Times]:
    """By key, of the sequences whose first token is in the message. Raises ColumnError."""
    first = view_i64(message.key)[view_i32(message.index) == 0].tolist()
    queued, prefilled = (view_f32(column, len(first)).tolist() for column in (message.queued, message.prefilled))
    return {key: Times(*times) for key, *times in zip(first, queued, prefilled, strict=True)}


def read_rows(message: Tokens, pieces: Pieces) -> list[TokenRow]:
    """All rows. Raises ColumnError when a column does not fit its neighbours or a value is out of bounds."""
    keys = view_i64(message.key)
    count = len(keys)
    tokens = view_i32(message.token, count)
    finish = view_u8(message.finish, count)
    index = view_i32(message.index, count)
    if count and (finish.max() > FINISH_ERROR or index.min() < 0):
        raise ColumnError("a finish or index is out of bounds")
    _check_tokens(tokens[finish != FINISH_ERROR], pieces)
    logprobs = {} if message.logprobs is None else dict(_read_logprobs(message.logprobs, tokens.tolist(), pieces))
    rows = zip(keys.tolist(), tokens.tolist(), finish.tolist(), index.tolist(), strict=True)
    return [TokenRow(*row, logprobs.get(number)) for number, row in enumerate(rows)]


def _check_tokens(tokens: "np.ndarray[tuple[int, ...], np.dtype[np.int32]]", pieces: Pieces) -> None:
    if len(tokens) and (tokens.min() < 0 or tokens.max() >= len(pieces.of)):
        raise ColumnError("a token id is outside the vocabulary")


def _read_logprobs(columns: LogprobColumns, tokens: list[int], pieces: Pieces) -> Iterator[tuple[int, TokenLogprob]]:
    rows = view_i32(columns.row)
    chosen = view_f32(columns.chosen, len(rows)).tolist()
    counts = view_i32(columns.count, len(rows))
    if len(rows) and (counts.min() < 0 or rows.min() < 0 or rows.max() >= len(tokens)):
        raise ColumnError("a logprob row or count is out of bounds")
    total = int(counts.sum(dtype=np.int64))
    top_ids = view_i32(columns.top_ids, total)
    _check_tokens(top_ids, pieces)
    alternatives = list(zip(top_ids.tolist(), view_f32(columns.top, total).tolist(), strict=True))
    begin = 0
    for row, logprob, count in zip(rows.tolist(), chosen, counts.tolist(), strict=True):
        top = [(token, pieces.of[token], value) for token, value in alternatives[begin : begin + count]]
        begin += count
        if tokens[row] >= 0:
            yield row, TokenLogprob(tokens[row], pieces.of[tokens[row]], logprob, top)
