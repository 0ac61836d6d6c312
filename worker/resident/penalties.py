"""What rows with penalties have seen, in one tensor for all slots, so that a step takes and notes the tokens of many rows at once."""

import torch
from torch import Tensor

from kernels.reference.sampling import Penalties
from worker.slots import PenaltyState, Slots


class PooledSlots(Slots):
    """Slots whose penalty states are rows of `seen` [S, V] bool and `counts` [S, V] float32, which exist from the first such row on."""

    def __init__(self, count: int, max_blocks: int, vocab: int, device: torch.device) -> None:
        super().__init__(count, max_blocks, vocab, device)
        self._pool: tuple[Tensor, Tensor] | None = None

    def penalise(self, slot: int) -> None:
        if self._pool is None:
            shape = self.count, self.vocab
            self._pool = torch.zeros(shape, dtype=torch.bool, device=self.device), torch.zeros(shape, device=self.device)
        seen, counts = (part[slot].zero_() for part in self._pool)
        self.penalties[slot] = PenaltyState(seen, counts)

    def gather(self, row: Tensor, slot: Tensor, factors: Tensor) -> Penalties:
        """Penalties of the batch's int32 rows `row`, which are of `slot`; `factors` [3, N]: repetition, presence, frequency."""
        seen, counts = self._pooled()
        slots = slot.long()
        repetition, presence, frequency = factors
        return Penalties(
            row=row.long(), counts=counts[slots], seen=seen[slots], repetition=repetition, presence=presence, frequency=frequency
        )  # fmt: skip

    def sampled(self, slot: Tensor, token: Tensor) -> None:
        """Note the int32 token that each row of `slot` has just drawn; negative: none."""
        seen, counts = self._pooled()
        place = slot.long(), token.clamp(min=0).long()
        counts.index_put_(place, (token >= 0).float(), accumulate=True)
        seen[place] = True

    def _pooled(self) -> tuple[Tensor, Tensor]:
        assert self._pool is not None  # there are rows with penalties
        return self._pool
