"""A worker without a model: it follows plans as far as lengths go and makes up the tokens."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from messages.plan import StepPlan
from messages.result import Attached, StepResult
from simulator.work import Work
from transport.columns import I32, I64, view_i32, view_i64, view_slots, view_u8

NO_ENDING = -1


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """What a row says: `ending` is the length (prompt + generated) at which it samples the end token, NO_ENDING for never.

    `answer` holds its generated tokens, from position `prompt_len`; where there are none, `token_at` makes them up.
    """

    prompt_len: int = 0
    ending: int = NO_ENDING
    answer: I32 | None = None


Scripts = Callable[[int], Script]


def end_token(vocab: int) -> int:
    """The one token that ends a sequence here; `token_at` never gives it."""
    return vocab - 1


def token_at(seed: I64, position: I64, vocab: int) -> I32:
    """The tokens a row of `seed` has at `position` (both i64 columns): a pure function, so that an answer can be known before it is given."""
    return ((seed * 1_000_003 + position * 7919) % (vocab - 1)).astype(np.int32)


class NullWorker:
    """Rows of one session. `scripts(seed)` is asked once for each row admitted."""

    def __init__(self, attached: Attached, scripts: Scripts) -> None:
        self._vocab = attached.vocab
        self._scripts = scripts
        self._answers: dict[int, Script] = {}
        self._seed: I64 = np.zeros(attached.max_slots, dtype=np.int64)
        self._length: I64 = np.zeros(attached.max_slots, dtype=np.int64)
        self._ending: I64 = np.full(attached.max_slots, NO_ENDING, dtype=np.int64)
        self._decode: I32 = np.empty(0, dtype=np.int32)

    def run(self, plan: StepPlan) -> tuple[StepResult, Work]:
        """The step's result, without its times, and the work it was. Plans come in order."""
        if plan.admit is not None:
            self._admit(view_i32(plan.admit.slot), view_i64(plan.admit.seed))
        if plan.decode is not None:
            self._decode = view_slots(plan.decode)
        rows, computed, context = self._decode, 0, 0
        self._length[rows] += 1
        if plan.prefill is not None:
            chunks, count = view_i32(plan.prefill.slot), view_i32(plan.prefill.count)
            self._length[chunks] = view_i32(plan.prefill.start) + count
            computed, context = int(count.sum()), int(self._length[chunks].sum())
            rows = np.concatenate([chunks[view_u8(plan.prefill.sample) == 1], rows])
        work = Work(computed, self._decode.size, context + int(self._length[self._decode].sum()))
        return self._result(plan, rows), work

    def _admit(self, slots: I32, seeds: I64) -> None:
        self._seed[slots] = seeds
        for slot, seed in zip(slots.tolist(), seeds.tolist(), strict=True):
            script = self._scripts(seed)
            self._ending[slot] = script.ending
            self._answers.pop(slot, None)
            if script.answer is not None:
                self._answers[slot] = script

    def _result(self, plan: StepPlan, rows: I32) -> StepResult:
        position = self._length[rows]
        token = token_at(self._seed[rows], position, self._vocab)
        if self._answers:
            self._recite(rows.tolist(), position.tolist(), token)
        token[position + 1 == self._ending[rows]] = end_token(self._vocab)
        return StepResult(session=plan.session, step=plan.step, slot=rows.tobytes(), token=token.tobytes(), status=bytes(rows.size))

    def _recite(self, rows: list[int], position: list[int], token: I32) -> None:
        for place, (slot, where) in enumerate(zip(rows, position, strict=True)):
            script = self._answers.get(slot)
            if script is not None and script.answer is not None and where - script.prompt_len < script.answer.size:
                token[place] = script.answer[where - script.prompt_len]
