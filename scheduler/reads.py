"""How much of the KV memory each plan reads."""

import numpy as np

from messages.plan import StepPlan
from transport.columns import view_i32, view_slots


class Reads:
    """The lengths of all rows, as a worker would keep them, for the KV positions that a plan reads."""

    def __init__(self) -> None:
        self._session = 0
        self._length = np.zeros(0, dtype=np.int64)
        self._decode = np.zeros(0, dtype=np.int32)

    def of(self, plan: StepPlan) -> tuple[int, int, int]:
        """(prompt tokens, decode rows, KV positions) of the next plan."""
        if plan.session != self._session:
            self._session = plan.session
            self._length[:] = 0
        prefill = context = 0
        if plan.prefill is not None:
            slots, count = view_i32(plan.prefill.slot), view_i32(plan.prefill.count)
            reached = view_i32(plan.prefill.start) + count
            self._reserve(int(slots.max()) + 1)
            self._length[slots] = reached
            prefill, context = int(count.sum()), int(reached.sum())
        if plan.decode is not None:
            self._decode = view_slots(plan.decode)
        length = self._length[self._decode] + 1
        self._length[self._decode] = length
        return prefill, self._decode.size, context + int(length.sum())

    def _reserve(self, slots: int) -> None:
        if slots > self._length.size:
            longer = np.zeros(2 * slots, dtype=np.int64)
            longer[: self._length.size] = self._length
            self._length = longer
