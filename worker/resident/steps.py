"""The launches of a step on the device: what is captured in graphs, and what a step with prompts does one by one."""

from dataclasses import replace

import torch
from torch import Tensor

from kernels.attention import AttentionBatch
from kernels.backend import Kernels
from kernels.reference.sampling import SamplingBatch
from worker.decoder import Decoder, StepInput
from worker.memory import Cache
from worker.resident.arena import Arena
from worker.resident.graphs import Key
from worker.resident.post import Post
from worker.resident.short import Short
from worker.resident.wishes import FILTERED, SEPARATE


class Steps:
    """Reads the state of rows from `arena`. Nothing here waits for the device."""

    def __init__(self, decoder: Decoder, cache: Cache, kernels: Kernels, arena: Arena, post: Post, short: Short) -> None:
        self._decoder, self._cache, self._kernels, self._arena, self._post, self._short = decoder, cache, kernels, arena, post, short

    def run(self, key: Key) -> Tensor:
        """A step that can be a graph: its tokens, or its logits when they are sampled separately."""
        return self.short(key) if key.tokens else self.decode(key.rows, key.mode)

    def decode(self, size: int, mode: str) -> Tensor:
        """A step of the first `size` rows of the arena, whose tokens, unless they are sampled separately, are posted too."""
        slot = self._arena.rows[:size]
        token, position = torch.empty(2, size, dtype=torch.int32, device=slot.device)
        begin = self._kernels.begin_rows if mode == SEPARATE else self._kernels.start_rows
        columns = begin(self._arena.columns, slot, token, position)
        logits = self._decoder.logits(self._hidden(token, slot, position, slot.new_empty(0, 2), None, size), None)
        return logits if columns is None else self.draw(logits, slot, columns, mode == FILTERED, self._post.words)

    def short(self, key: Key) -> Tensor:
        """A step with short prompts, whose columns lie where they do for every step of its kind."""
        return self.mixed(self._short.columns(key), key.rows, key.mode == FILTERED)

    def mixed(self, columns: list[Tensor], decodes: int, filtered: bool) -> Tensor:
        """The tokens of a step with prompts, all drawn as the device reads the sampling columns. See `mixed_hidden`."""
        slot = columns[5]
        logits = self._decoder.logits(self.mixed_hidden(columns, decodes), columns[4])
        return self.draw(logits, slot, self._kernels.sampling_columns(self._arena.columns, slot), filtered)

    def mixed_hidden(self, columns: list[Tensor], decodes: int) -> Tensor:
        """Of a step with a layout's `columns`, the last `decodes` tokens of which are decode rows and taken from the device's state."""
        token, slot, position, tiles, wanted, _ = columns
        first = len(token) - decodes
        if decodes:
            self._kernels.begin_rows(self._arena.columns, slot[first:], token[first:], position[first:])
        return self._hidden(token, slot, position, tiles, wanted, decodes)

    def draw(self, logits: Tensor, slot: Tensor, columns: tuple[Tensor, ...], filtered: bool, post: Tensor | None = None) -> Tensor:
        """A token for every row, kept as its last one."""
        out = self._kernels.sample(logits, batch_of(columns, filtered))
        return self._kernels.finish_rows(self._arena.columns, slot, out.token, out.finite, post)

    def _hidden(self, token: Tensor, slot: Tensor, position: Tensor, tiles: Tensor, wanted: Tensor | None, singles: int) -> Tensor:
        window = self._decoder.config.window
        full = AttentionBatch(table=self._arena.table, slot=slot, position=position, tiles=tiles, singles=singles, window=None)
        windowed = full if window is None else replace(full, window=window)
        step = StepInput(tokens=token, positions=position, wanted=wanted, full=full, windowed=windowed)
        return self._decoder.hidden(step, self._cache.k, self._cache.v)


def batch_of(columns: tuple[Tensor, ...], filtered: bool) -> SamplingBatch:
    """Of rows with these sampling columns, all of them drawn as the device reads the columns."""
    temperature, top_p, min_p, top_k, seed, position = columns
    return SamplingBatch(
        temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k, seed=seed, position=position,
        random=[0], filtered=[0] if filtered else [],
    )  # fmt: skip
