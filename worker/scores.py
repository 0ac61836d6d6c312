"""Logprobs of prompt tokens and sums of hidden states: computed piece by piece, for the logits of a long prompt would take gigabytes."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.backend import Kernels
from messages.plan import Scores
from messages.result import ScoreColumns
from transport.columns import I32, I64, pack_f32, pack_i32
from worker.decoder import Decoder

PIECE_VALUES = 1 << 24
"""Logits, or hidden values, of one piece at most: 64 MiB of float32."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """`index` [N]: which tokens of the step; `token` [N]: what follows each; per row `count` of them and `top` alternatives wanted.

    `pool_index` [M]: tokens of the step whose hidden states are summed, `pool_count` of them for each such row.
    """

    asked: Scores
    index: I64
    token: I32
    count: I32
    top: I32
    pool_index: I64
    pool_count: I32


@dataclass(frozen=True, kw_only=True)
class Found:
    """On the device, or on the host: logprobs `chosen` [N], their `rank` [N] int64, `top` and `top_ids` [N, most]; `states` [rows, C] float32."""

    chosen: Tensor
    rank: Tensor
    top: Tensor
    top_ids: Tensor
    states: Tensor


def compute(decoder: Decoder, kernels: Kernels, x: Tensor, scored: Scored, index: Tensor, token: Tensor, pool_index: Tensor) -> Found:
    """Of the step whose last hidden states are `x`; `index`, `token` and `pool_index` are those of `scored` as int64 on its device."""
    most, size = int(scored.top.max(initial=0)), max(1, PIECE_VALUES // decoder.config.vocab)
    pieces = zip(index.split(size), token.split(size), strict=True) if len(index) else []
    parts = [_piece(kernels, decoder.logits(x, piece), wanted, most) for piece, wanted in pieces]
    if not parts:
        parts = [(x.new_empty(0, dtype=torch.float32), index, x.new_empty(0, most, dtype=torch.float32), index.new_empty(0, most))]
    chosen, rank, top, top_ids = (torch.cat(part) for part in zip(*parts, strict=True))
    sums = [_sum(decoder, x, row) for row in pool_index.split(scored.pool_count.tolist())] if len(pool_index) else []
    states = torch.stack(sums) if sums else x.new_empty(0, x.shape[1], dtype=torch.float32)
    return Found(chosen=chosen, rank=rank, top=top, top_ids=top_ids, states=states)


def _piece(kernels: Kernels, logits_NV: Tensor, token: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    chosen, top, top_ids = kernels.score(logits_NV, token, most)
    return chosen, (logits_NV >= logits_NV.gather(1, token[:, None])).sum(1), top, top_ids


def _sum(decoder: Decoder, x: Tensor, index: Tensor) -> Tensor:
    """[C] float32."""
    pieces = index.split(max(1, PIECE_VALUES // x.shape[1]))
    return torch.stack([decoder.normed(x, piece).float().sum(0) for piece in pieces]).sum(0)


def score_columns(scored: Scored, found: Found) -> ScoreColumns:
    """`found` is on the host; alternatives are cut to what each row wants."""
    chosen, top, top_ids = found.chosen.numpy(), found.top.numpy(), found.top_ids.numpy()
    width: NDArray[np.bool_] = np.repeat(scored.top, scored.count)[:, None] > np.arange(top.shape[1])
    asked = scored.asked
    return ScoreColumns(
        slot=asked.slot,
        start=asked.start,
        count=asked.count,
        top=asked.top,
        chosen=pack_f32(chosen),
        ranks=pack_i32(found.rank.numpy()),
        top_ids=pack_i32(top_ids[width]),
        top_values=pack_f32(top[width]),
        states=pack_f32(found.states.numpy()),
    )
