"""What the rows of a step may say: each slot's changes to its logits, and its last generated tokens where words are forbidden."""

import functools
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kernels.backend import Kernels
from kernels.reference.bias import ANY, BANNED, Bias
from kernels.reference.sampling import Sampled, SamplingBatch
from messages.sampling import MAX_BAD_WORD_TOKENS
from transport.columns import F32, I32, I64

REMEMBERED = MAX_BAD_WORD_TOKENS - 1
NOTHING = -1
"""In `recent`: before the first generated token."""


@dataclass(frozen=True, kw_only=True)
class RowBias:
    """Of one row, as in `messages.plan.Biases`; `words` [W, REMEMBERED + 1]: the last token of each in the last place, ANY before its first."""

    closed: bool
    token: I32
    value: F32
    since: I32
    words: I32

    @functools.cached_property
    def settled(self) -> int:
        """The length from which nothing changes any more."""
        return int(self.since.max(initial=0))

    @functools.cached_property
    def last(self) -> tuple[I32, F32]:
        """Tokens and what is added to them from then on."""
        return self.at(self.settled)

    def at(self, length: int) -> tuple[I32, F32]:
        """The same for a row of `length` tokens; of one that is not closed, tokens to which nothing is added are left out."""
        value = np.maximum(np.where(self.since > length, -np.inf, self.value), BANNED).astype(np.float32)
        if self.closed:
            return self.token, value
        kept = value != 0
        return self.token[kept], value[kept]


def pad_words(words: list[I32]) -> I32:
    """`words` of RowBias."""
    table = np.full((len(words), REMEMBERED + 1), ANY, np.int32)
    for line, word in zip(table, words, strict=True):
        line[len(line) - len(word) :] = word
    return table


class Biased:
    """`rows` by slot; `recent` [slots, REMEMBERED]: the last generated tokens of slots with words, kept on the device from the first such row on."""

    def __init__(self, slots: int, device: torch.device) -> None:
        self.rows: dict[int, RowBias] = {}
        self.worded: set[int] = set()
        self.recent = torch.empty(0, REMEMBERED, dtype=torch.int64, device=device)
        self._slots = slots
        self._known: tuple[bytes, list[I32]] | None = None

    def admit(self, slot: int, bias: RowBias) -> None:
        self.rows[slot] = bias
        self._known = None
        if len(bias.words):
            if not len(self.recent):
                self.recent = self.recent.new_empty(self._slots, REMEMBERED)
            self.worded.add(slot)
            self.recent[slot] = NOTHING

    def release(self, slot: int) -> None:
        self.rows.pop(slot, None)
        self._known = None
        self.worded.discard(slot)

    def note(self, slot: int, tokens: NDArray[np.integer]) -> None:
        """Tokens that a slot with words has generated."""
        new = torch.from_numpy(tokens[-REMEMBERED:].astype(np.int64)).to(self.recent.device)
        self.recent[slot] = torch.cat((self.recent[slot, len(new) :], new))

    def sampled(self, there: list[Tensor], token: Tensor) -> None:
        """The rows of a batch have just drawn `token`, those with words among them; `there`: `columns`, which are on the device by now."""
        row, slot = (column.long() for column in there[-2:])
        if len(row):
            self.recent[slot] = torch.cat((self.recent[slot][:, 1:], token[row][:, None].long()), 1)

    def columns(self, slot: I32, length: I64) -> list[I32]:
        """For batch rows of these slots, which have `length` tokens each: the columns that `read` takes; none when nothing is to be changed now.

        Row, token, value (its bits), closed rows, of each word its row, its slot and itself [W, REMEMBERED + 1], rows with words, their slots.
        """
        batch = slot.tobytes()
        if self._known is not None and self._known[0] == batch:
            return self._known[1]
        rows = [(index, self.rows[number]) for index, number in enumerate(slot.tolist()) if number in self.rows]
        settled = all(length[index] >= bias.settled for index, bias in rows)
        found = self._columns(slot, [(index, bias, *(bias.last if settled else bias.at(int(length[index])))) for index, bias in rows])
        self._known = (batch, found) if settled else None
        return found

    def _columns(self, slot: I32, parts: list[tuple[int, RowBias, I32, F32]]) -> list[I32]:
        rows = [(index, bias) for index, bias, _, _ in parts]
        words = [(index, bias) for index, bias in rows if len(bias.words)]
        if not words and not any(len(token) or bias.closed for _, bias, token, _ in parts):
            return []
        word_row = np.array([index for index, bias in words for _ in bias.words], np.int32)
        return [
            np.concatenate([np.full(len(token), index, np.int32) for index, _, token, _ in parts]),
            np.concatenate([token for _, _, token, _ in parts]),
            np.concatenate([value for _, _, _, value in parts]).view(np.int32),
            np.array([index for index, bias in rows if bias.closed], np.int32),
            word_row,
            slot[word_row],
            np.concatenate([bias.words for _, bias in words]) if words else np.zeros((0, REMEMBERED + 1), np.int32),
            np.array([index for index, _ in words], np.int32),
            slot[[index for index, _ in words]],
        ]

    def read(self, there: list[Tensor]) -> Bias:
        """`columns`, which are on the device by now."""
        row, token, value, closed, word_row, word_slot, words = there[:7]
        long = [column.long() for column in (row, token, closed, word_row, words)]
        return Bias(
            row=long[0],
            token=long[1],
            value=value.view(torch.float32),
            closed=long[2],
            word_row=long[3],
            word_token=long[4][:, -1],
            prefix=long[4][:, :-1],
            recent=self.recent[word_slot.long()] if len(word_slot) else long[4][:, :-1],
        )


def sample_biased(kernels: Kernels, logits_RV: Tensor, batch: SamplingBatch, bias: Bias | None, mask: tuple[Tensor, ...] = ()) -> Sampled:
    """Sample with these changes, the logits' own memory being used for them when nothing else needs it; logprobs are of the logits as they were.

    `mask`: int32 rows and words as kernels.reference.mask takes them.
    """
    if bias is None and not mask:
        return kernels.sample(logits_RV, batch)
    x = logits_RV
    if bias is not None:
        x = kernels.apply_bias(x, bias)
    elif batch.logprob_rows:
        x = x.clone()
    if mask:
        kernels.apply_mask(x, *mask)
    out = kernels.sample(x, replace(batch, logprob_rows=[], logprob_counts=[]))
    if not batch.logprob_rows:
        return out
    chosen, top, top_ids = kernels.logprobs(logits_RV, out.token, batch.logprob_rows, batch.logprob_counts)
    return replace(out, chosen=chosen, top=top, top_ids=top_ids)
