"""State of rows that stays on the device between steps: what a plan changes, what a step reads, what sampling leaves.

Columns have one value per slot and one more for the dummy slot, which padding rows name: int32 `length`, `last` and `failed`, and the sampling
columns. They are all views of one int32 `arena`, so that any change is one (index, word) pair.

A step that begins with `start_rows` takes a turn, which says where `finish_rows` leaves its tokens for the host.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

TURNS = 1 << 30
FIRST = 32
"""Words of a place before its tokens: the turn, then nothing."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Per slot [S + 1]: `length` in tokens, `last` token, `failed` (0 or 1), then how the row is sampled. `seed` is int64, `top_k` int32.

    `turn` [1], int32: how many steps there have been that `start_rows` began, modulo TURNS.
    """

    length: Tensor
    last: Tensor
    failed: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor
    seed: Tensor
    turn: Tensor


def write_words(arena: Tensor, pairs: Tensor) -> None:
    """arena[pairs[0]] = pairs[1] for int32 `pairs` [2, N]. Pairs of one index hold the same word."""
    arena[pairs[0].long()] = pairs[1]


def begin_rows(columns: Columns, slot_R: Tensor, token_R: Tensor, position_R: Tensor) -> None:
    """Decode rows of a step: `token` and `position` (int32) of each slot's next token, which its length then counts.

    The dummy slot stays at length 0.
    """
    slots = slot_R.long()
    position_R.copy_(columns.length[slots])
    token_R.copy_(columns.last[slots])
    columns.length[slots] = torch.where(slots < len(columns.length) - 1, position_R + 1, 0)


def sampling_columns(columns: Columns, slot_R: Tensor) -> tuple[Tensor, ...]:
    """temperature, top_p and min_p (float32), top_k, seed and the position to draw for (int64), one value per row."""
    slots = slot_R.long()
    floats = columns.temperature[slots], columns.top_p[slots], columns.min_p[slots]
    return *floats, columns.top_k[slots].long(), columns.seed[slots], columns.length[slots].long()


def start_rows(columns: Columns, slot_R: Tensor, token_R: Tensor, position_R: Tensor) -> tuple[Tensor, ...]:
    """`begin_rows`, and `sampling_columns` after it. Takes the next turn."""
    columns.turn.copy_((columns.turn + 1) % TURNS)
    begin_rows(columns, slot_R, token_R, position_R)
    return sampling_columns(columns, slot_R)


def finish_rows(columns: Columns, slot_R: Tensor, token_R: Tensor, finite_R: Tensor, post: Tensor | None = None) -> Tensor:
    """Keep each row's sampled int64 token for its next step; gives int32 tokens [R], -1 where the row has failed, now or before.

    A failed row stays failed and is fed token 0. The tokens also go to `post`, int32 [a power of two of places, FIRST + at least R] of the host's
    memory: behind the turn in the place that is the turn's, modulo the places.
    """
    slots = slot_R.long()
    good = finite_R & (columns.failed[slots] == 0)
    columns.failed[slots] = torch.where(good | (slots == len(columns.failed) - 1), 0, 1).to(torch.int32)
    columns.last[slots] = torch.where(good, token_R, 0).to(torch.int32)
    out = torch.where(good, token_R, -1).to(torch.int32)
    if post is not None:
        turn = int(columns.turn)
        place = post[turn % len(post)]
        place[0] = turn
        place[FIRST : FIRST + len(out)] = out
    return out
