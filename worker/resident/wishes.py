"""What the sampled rows of a step ask for beyond a draw, which decides how the step is launched."""

from dataclasses import dataclass

import numpy as np

from kernels.reference.sampling import GREEDY_BELOW
from transport.columns import I32
from worker.matching import Wanted
from worker.slots import Slots

PLAIN, FILTERED, SEPARATE = "plain", "filtered", "separate"
FACTORS = ("repetition_penalty", "presence_penalty", "frequency_penalty")


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """`filtered`: some row has top-k, top-p or min-p. `penal`: batch rows with penalties. Rows of `logprob_rows` want `logprob_counts` alternatives.

    `columns` go to the device when rows are sampled apart from the graph: rows with penalties, their slots, their factors [3, N]. So do those
    of `bias` (see `worker.bias.Biased.columns`). `matched`: rows that follow a grammar, whose masks go there when the rest of the step has been
    launched.
    """

    filtered: bool
    penal: list[int]
    logprob_rows: list[int]
    logprob_counts: list[int]
    columns: list[I32]
    bias: list[I32]
    matched: list[Wanted]

    @property
    def mode(self) -> str:
        """Which kind of graph the step takes."""
        if self.penal or self.logprob_rows or self.bias or self.matched:
            return SEPARATE
        return FILTERED if self.filtered else PLAIN


def wishes_of(slots: Slots, slot: I32) -> Wishes:
    """Of the sampled rows `slot`."""
    floats = {name: column[slot] for name, column in slots.floats.items()}
    cut = (slots.top_k[slot] > 0) | (floats["top_p"] < 1) | (floats["min_p"] > 0)
    asked = slots.logprobs[slot]
    rows = np.flatnonzero(asked >= 0)
    penal = [index for index, number in enumerate(slot.tolist()) if number in slots.penalties] if slots.penalties else []
    return Wishes(
        filtered=bool((cut & (floats["temperature"] >= GREEDY_BELOW)).any()),
        penal=penal,
        logprob_rows=rows.tolist(),
        logprob_counts=asked[rows].tolist(),
        columns=[np.array(penal, np.int32), slot[penal], np.stack([floats[name][penal] for name in FACTORS]).view(np.int32)] if penal else [],
        bias=slots.biased.columns(slot, slots.length[slot]) if slots.biased.rows else [],
        matched=slots.matching.wanted(slot, slots.length[slot] - slots.prompt_length[slot]) if slots.matching.rows else [],
    )
