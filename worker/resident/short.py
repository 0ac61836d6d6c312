"""Steps with short prompts, filled up to one of few sizes, so that each size can be a graph: launched one by one, such a step takes the host longer
than the device (bench/GPU.md).

What fills up is tokens, decode rows and draws of the dummy slot. They write to the dummy block and to rows of the step that nobody reads.
"""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from checkpoint.config import ModelConfig
from transport.columns import I32
from worker.resident.arena import ALIGNMENT, Arena
from worker.resident.graphs import Key
from worker.resident.layout import Layout
from worker.resident.wishes import FILTERED, PLAIN

TOKENS = (16, 64, 128, 256, 512, 1024)
"""Prompt tokens of a step that are filled up to."""
ROWS = (0, 1, 4, 16, 64, 128, 256)
"""Decode rows likewise."""
PROMPTS = 16
"""Most prompts of such a step."""
LAYER_SECONDS, PRODUCTS_PER_SECOND = 1.9e-4, 3.5e14
"""What a graph saves the host for a layer, and multiply-adds of the device (an H200; bench/GPU.md): with more tokens the device takes longer, and
what fills up costs more than it saves."""
GAP = 8
"""Tokens of the dummy slot between the prompts and the decode rows that are always there, for the tiles that fill up."""


def token_sizes(config: ModelConfig, most: int) -> tuple[int, ...]:
    """Those of TOKENS that pay for a model whose steps have `most` tokens at most."""
    layer = config.hidden * ((2 * config.heads + 2 * config.kv_heads) * config.head_dim + 3 * config.mlp)
    return tuple(size for size in TOKENS if size == TOKENS[0] or size <= min(most, LAYER_SECONDS * PRODUCTS_PER_SECOND / layer))


class Short:
    """Packs the columns of such steps on the host, and says where they lie on the device.

    `sizes`: the numbers of tokens that are filled up to; `tile`: tokens of one tile of attention.
    """

    def __init__(self, arena: Arena, sizes: tuple[int, ...], tile: int) -> None:
        self._dummy, self._tokens, self._tile = arena.dummy, sizes, tile
        most = arena.dummy
        self._rows = [*(size for size in ROWS if size < most), most]
        self._words = torch.zeros(self._ends(Key(most, "", sizes[-1]))[-1], dtype=torch.int32, device=arena.words.device)

    @property
    def largest(self) -> Key:
        return Key(self._rows[-1], FILTERED, self._tokens[-1])

    @property
    def least(self) -> Key:
        """The kind of a first prompt."""
        return Key(self._rows[0], PLAIN, self._tokens[0])

    def kinds(self, mode: str) -> Iterator[Key]:
        """All kinds of steps, those with fewest tokens first."""
        return (Key(rows, mode, tokens) for tokens in self._tokens for rows in self._rows)

    def key(self, tokens: int, prompts: int, decodes: int, mode: str) -> Key | None:
        """What a step is filled up to; None when it is not that short."""
        if prompts > PROMPTS or tokens > self._tokens[-1]:
            return None
        return Key(self._rows[bisect_left(self._rows, decodes)], mode, self._tokens[bisect_left(self._tokens, tokens)])

    def pack(self, layout: Layout, decodes: int, key: Key) -> I32:
        """The columns of a step, filled up, one after the other; the draws of its rows come first."""
        tokens, dummy = key.tokens, self._dummy
        packed = np.zeros(self._ends(key)[-1], np.int32)
        token, slot, position, tiles, wanted, drawn = (packed[part] for part in self._parts(key))
        prompt, last = len(layout.token) - decodes, tokens + GAP
        slot.fill(dummy)
        for ours, theirs in ((token, layout.token), (slot, layout.slot), (position, layout.position)):
            ours[:prompt] = theirs[:prompt]
            ours[last : last + decodes] = theirs[prompt:]
        tiles.reshape(-1, 2)[:] = tokens, 1
        tiles[: layout.tiles.size] = layout.tiles.reshape(-1)
        wanted.fill(tokens)
        wanted[: len(layout.wanted)] = np.where(layout.wanted < prompt, layout.wanted, layout.wanted - prompt + last)
        drawn.fill(dummy)
        drawn[: len(layout.sampled)] = layout.sampled
        return packed

    def put_dummies(self, key: Key) -> None:
        """Fill all of a step up."""
        nothing = np.zeros(0, np.int32)
        layout = Layout(token=nothing, slot=nothing, position=nothing, tiles=nothing.reshape(0, 2), wanted=nothing, sampled=nothing)
        self.put(torch.from_numpy(self.pack(layout, 0, key)))

    def put(self, packed: Tensor) -> None:
        """Bring packed columns to where `columns` finds them."""
        self._words[: len(packed)].copy_(packed)

    def columns(self, key: Key) -> list[Tensor]:
        """As `Layout.columns`, on the device."""
        token, slot, position, tiles, wanted, drawn = (self._words[part] for part in self._parts(key))
        return [token, slot, position, tiles.view(-1, 2), wanted, drawn]

    def _sizes(self, key: Key) -> list[int]:
        tokens, draws = key.tokens + GAP + key.rows, PROMPTS + key.rows
        return [tokens, tokens, tokens, 2 * (-(-key.tokens // self._tile) + PROMPTS), draws, draws]

    def _ends(self, key: Key) -> list[int]:
        return list(accumulate(-(-size // ALIGNMENT) * ALIGNMENT for size in self._sizes(key)))

    def _parts(self, key: Key) -> list[slice]:
        return [slice(begin, begin + size) for begin, size in zip([0, *self._ends(key)[:-1]], self._sizes(key), strict=True)]
