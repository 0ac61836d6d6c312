"""Logprobs of prompt tokens: computed piece by piece, for logits of a long prompt would take gigabytes."""

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
"""Logits of one piece at most: 64 MiB of float32."""


@dataclass(frozen=True, kw_only=True)
class Scored:
    """`index` [N]: which tokens of the step; `token` [N]: what follows each; per row `count` of them and `top` alternatives wanted."""

    asked: Scores
    index: I64
    token: I32
    count: I32
    top: I32

    @property
    def most(self) -> int:
        return int(self.top.max())


def compute(decoder: Decoder, kernels: Kernels, x: Tensor, index: Tensor, token: Tensor, most: int) -> tuple[Tensor, Tensor, Tensor]:
    """Logprobs of the int64 `token` [N] after the tokens `index` [N] of the step whose last hidden states are `x`; `most` alternatives [N, most]."""
    size = max(1, PIECE_VALUES // decoder.config.vocab)
    pieces = zip(index.split(size), token.split(size), strict=True)
    parts = [kernels.score(decoder.logits(x, piece), wanted, most) for piece, wanted in pieces]
    chosen, top, top_ids = (torch.cat(part) for part in zip(*parts, strict=True))
    return chosen, top, top_ids


def score_columns(scored: Scored, chosen: NDArray[np.float32], top: NDArray[np.float32], top_ids: NDArray[np.integer]) -> ScoreColumns:
    """`top` and `top_ids` are cut to what each row wants."""
    width = np.repeat(scored.top, scored.count)[:, None] > np.arange(top.shape[1])
    asked = scored.asked
    return ScoreColumns(
        slot=asked.slot,
        start=asked.start,
        count=asked.count,
        top=asked.top,
        chosen=pack_f32(chosen),
        top_ids=pack_i32(top_ids[width]),
        top_values=pack_f32(top[width]),
    )
