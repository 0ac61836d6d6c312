"""The state the worker keeps per slot between plans."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from transport.columns import F32, I32, I64
from worker.bias import Biased
from worker.matching import Matching

NO_BLOCK = -1
NO_TOKEN = -1


class PenaltyState:
    """What a row with penalties has seen: `seen` [V] bool over prompt and generated tokens, `counts` [V] float32 over generated ones."""

    def __init__(self, seen: Tensor, counts: Tensor) -> None:
        self.seen, self.counts = seen, counts

    def add(self, tokens: I32, generated: int) -> None:
        """Add tokens of the row, the last `generated` of which were sampled."""
        ids = torch.from_numpy(tokens.astype(np.int64)).to(self.seen.device)
        self.seen[ids] = True
        if generated:
            last = ids[-generated:]
            self.counts.index_add_(0, last, torch.ones(len(last), device=last.device))


class Slots:
    """Columns indexed by slot.

    `admitted`; `length` in tokens whose keys are in the cache; `last` sampled token (NO_TOKEN before the first); `failed` once its logits
    were not finite; `table` [slots, max_blocks] of block ids (NO_BLOCK where none); the sampling columns; `penalties` only for rows that have any;
    `biased` and `matching` likewise.
    """

    def __init__(self, count: int, max_blocks: int, vocab: int, device: torch.device) -> None:
        self.count, self.vocab, self.device = count, vocab, device
        self.admitted: NDArray[np.bool_] = np.zeros(count, bool)
        self.failed: NDArray[np.bool_] = np.zeros(count, bool)
        self.length: I64 = np.zeros(count, np.int64)
        self.prompt_length: I64 = np.zeros(count, np.int64)
        self.last: I64 = np.full(count, NO_TOKEN, np.int64)
        self.table: I64 = np.full((count, max_blocks), NO_BLOCK, np.int64)
        self.seed: I64 = np.zeros(count, np.int64)
        self.top_k: I64 = np.zeros(count, np.int64)
        self.logprobs: I32 = np.full(count, -1, np.int32)
        self.floats: dict[str, F32] = {name: np.zeros(count, np.float32) for name in FLOATS}
        self.penalties: dict[int, PenaltyState] = {}
        self.biased = Biased(count, device)
        self.matching = Matching(vocab)

    @property
    def noting(self) -> bool:
        """Some row has penalties, forbidden words or a grammar, and must be told its tokens."""
        return bool(self.penalties or self.biased.worded or self.matching.rows)

    def clear(self) -> None:
        """Forget every slot."""
        self.release(np.arange(self.count))

    def release(self, slots: NDArray[np.integer]) -> None:
        self.admitted[slots] = False
        for slot in slots.tolist():
            self.penalties.pop(slot, None)
            self.biased.release(slot)
            self.matching.release(slot)

    def admit(self, slots: I32) -> None:
        """Start rows afresh; the caller then sets their sampling columns."""
        self.admitted[slots] = True
        self.failed[slots] = False
        self.length[slots] = 0
        self.last[slots] = NO_TOKEN
        self.table[slots] = NO_BLOCK

    def penalise(self, slot: int) -> None:
        """Begin to keep what the row has seen."""
        self.penalties[slot] = PenaltyState(
            torch.zeros(self.vocab, dtype=torch.bool, device=self.device), torch.zeros(self.vocab, device=self.device)
        )

    def note(self, slot: int, tokens: I32, start: int) -> None:
        """Tokens now at positions `start`.. of the row, for its penalties, its words and its grammar if it has any."""
        generated = min(len(tokens), max(0, start + len(tokens) - int(self.prompt_length[slot])))
        if slot in self.biased.worded and generated:
            self.biased.note(slot, tokens[-generated:])
        row = self.matching.rows.get(slot)
        if row is not None and generated:
            self.matching.note(row, tokens[-generated:].tolist())
        state = self.penalties.get(slot)
        if state is not None:
            state.add(tokens, generated)


FLOATS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
