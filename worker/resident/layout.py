"""The tokens of one step as columns: what a mixed step sends up besides its changes."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transport.columns import I32, I64
from worker.plan import Rows


@dataclass(frozen=True, kw_only=True)
class Layout:
    """`token`, `slot` and `position` [T], prompt chunks first (the device fills in the tokens of decode rows); `tiles` [tiles, 2] of the chunks.

    `wanted` [R]: token rows that get logits, of slots `sampled`.
    """

    token: I32
    slot: I32
    position: I32
    tiles: I32
    wanted: I32
    sampled: I32

    @property
    def columns(self) -> list[I32]:
        return [self.token, self.slot, self.position, self.tiles, self.wanted, self.sampled]


def tiles_of(start: I64, count: I64, size: int) -> I32:
    """First token and number of tokens [tiles, 2] of pieces of at most `size` tokens of each chunk, the last positions first.

    Chunks of `count` tokens begin at positions `start`, their tokens follow one another: the pieces that see most keys come first.
    """
    pieces = -(-count // size)
    chunk = np.repeat(np.arange(len(count)), pieces)
    done = (np.arange(len(chunk)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * size
    first = np.cumsum(count) - count
    order = np.argsort(-(start[chunk] + done), kind="stable")
    return np.stack((first[chunk] + done, np.minimum(size, count[chunk] - done)), 1)[order].astype(np.int32)


def lay_out(rows: Rows, sampled: NDArray[np.integer], tile: int) -> Layout:
    """Columns of the rows of a plan, of which those numbered `sampled` are sampled."""
    prompts = len(rows.slot) - rows.decodes
    ends = np.cumsum(rows.count)
    position = np.arange(int(ends[-1])) + np.repeat(rows.start - (ends - rows.count), rows.count)
    return Layout(
        token=np.concatenate((rows.tokens, np.zeros(rows.decodes, np.int32))),
        slot=np.repeat(rows.slot, rows.count),
        position=position.astype(np.int32),
        tiles=tiles_of(rows.start[:prompts], rows.count[:prompts], tile),
        wanted=(ends[sampled] - 1).astype(np.int32),
        sampled=rows.slot[sampled],
    )
