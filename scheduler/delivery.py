"""From a step's result to the tokenizers' messages, column by column."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from messages.result import NON_FINITE, OK, UNMATCHED, StepResult
from messages.text import Problem
from messages.tokens import LogprobColumns, Tokens
from scheduler.errors import ContractError
from scheduler.requests import Beginning
from transport.columns import F32, I32, I64, U8, ColumnError, pack_f32, pack_i32, view_f32, view_i32, view_u8

NON_FINITE_PROBLEM = Problem(status=500, code="non_finite_logits", message="the model gave logits that are not numbers for this sequence")

UNMATCHED_PROBLEM = Problem(
    status=500, code="grammar_too_complex", message="the form that the answer is to have is too complex to go on with: simplify it"
)
PROBLEM_OF = {NON_FINITE: NON_FINITE_PROBLEM, UNMATCHED: UNMATCHED_PROBLEM}


@dataclass(frozen=True, slots=True)
class Logprobs:
    """`LogprobColumns`, viewed."""

    row: I32
    chosen: F32
    count: I32
    top_ids: I32
    top: F32


@dataclass(frozen=True, slots=True)
class Sampled:
    """The columns of a checked result: one value per sampled row."""

    slots: I32
    token: I32
    status: U8
    logprobs: Logprobs | None


def read_result(result: StepResult, expected: bytes, vocab: int) -> Sampled:
    """View a result whose `slot` column must equal `expected`. Raises ContractError."""
    if result.slot != expected:
        raise ContractError(f"the result of step {result.step} is not of the rows planned")
    try:
        slots = view_i32(result.slot)
        token = view_i32(result.token, slots.size)
        status = view_u8(result.status, slots.size)
        logprobs = None if result.logprobs is None else _read_logprobs(result.logprobs, slots.size)
    except ColumnError as error:
        raise ContractError(f"the result of step {result.step}: {error}") from error
    ok = status == OK
    if not ok.all() and not np.isin(status[~ok], list(PROBLEM_OF)).all():
        raise ContractError(f"the result of step {result.step} has an unknown status")
    if ((token < 0) | (token >= vocab))[ok].any():
        raise ContractError(f"the result of step {result.step} has a token outside the vocabulary")
    return Sampled(slots, token, status, logprobs)


def _read_logprobs(columns: LogprobColumns, rows: int) -> Logprobs:
    row = view_i32(columns.row)
    count = view_i32(columns.count, row.size)
    total = int(count.sum())
    if row.size and (row.min() < 0 or row.max() >= rows or count.min() < 0 or (np.diff(row) <= 0).any()):
        raise ColumnError("logprob rows out of order or out of range")
    return Logprobs(row, view_f32(columns.chosen, row.size), count, view_i32(columns.top_ids, total), view_f32(columns.top, total))


@dataclass(frozen=True, slots=True)
class Delivery:
    """New tokens of live rows, one value per row: `place` is the row's place in the result, the rest is as in `messages.tokens.Tokens`.

    `first` has the keys whose first token is among them.
    """

    place: I64
    tokenizer: I32
    key: I64
    token: I32
    finish: U8
    index: I32
    status: U8
    first: dict[int, Beginning]

    def messages(self, logprobs: Logprobs | None, rows: int) -> Iterator[tuple[int, Tokens]]:
        """One message per tokenizer (its number, the message). `rows` is the number of rows in the result."""
        first = self.tokenizer[0]
        if (self.tokenizer == first).all():
            yield int(first), self._message(logprobs, rows)
            return
        for number in np.unique(self.tokenizer).tolist():
            yield number, self._of(np.flatnonzero(self.tokenizer == number))._message(logprobs, rows)

    def _of(self, pick: I64) -> "Delivery":
        return Delivery(
            self.place[pick],
            self.tokenizer[pick],
            self.key[pick],
            self.token[pick],
            self.finish[pick],
            self.index[pick],
            self.status[pick],
            self.first,
        )

    def _message(self, logprobs: Logprobs | None, rows: int) -> Tokens:
        failed = self.status != OK
        token, problems = self.token, {}
        if failed.any():
            token = np.where(failed, np.int32(-1), token)
            problems = {key: PROBLEM_OF[status] for key, status in zip(self.key[failed].tolist(), self.status[failed].tolist(), strict=True)}
        first = {key: self.first[key] for key in self.key[self.index == 0].tolist()} if self.first else {}
        return Tokens(
            key=self.key.tobytes(),
            token=token.tobytes(),
            finish=self.finish.tobytes(),
            index=self.index.tobytes(),
            logprobs=None if logprobs is None else _select(logprobs, self._new_places(rows, ~failed)),
            problems=problems,
            cached={key: it.cached for key, it in first.items() if it.cached},
            queued=pack_f32([it.queued for it in first.values()]),
            prefilled=pack_f32([it.prefilled for it in first.values()]),
        )

    def _new_places(self, rows: int, good: NDArray[np.bool_]) -> I32:
        """For each of the result's `rows` its place in this message, -1 for none."""
        places = np.full(rows, -1, dtype=np.int32)
        places[self.place[good]] = np.flatnonzero(good)
        return places


def _select(logprobs: Logprobs, new_place: I32) -> LogprobColumns | None:
    """The entries whose row has a new place (>= 0), renumbered; None when there is none."""
    row = new_place[logprobs.row]
    keep = row >= 0
    if not keep.any():
        return None
    tops = np.repeat(keep, logprobs.count)
    return LogprobColumns(
        row=row[keep].tobytes(),
        chosen=logprobs.chosen[keep].tobytes(),
        count=logprobs.count[keep].tobytes(),
        top_ids=logprobs.top_ids[tops].tobytes(),
        top=logprobs.top[tops].tobytes(),
    )


def failure(key: int, index: int, problem: Problem, finish: int) -> Tokens:
    """The last message of one key that cannot be saved. `index` is the number of tokens delivered."""
    return Tokens(
        key=np.asarray([key], dtype="<i8").tobytes(), token=pack_i32([-1]), finish=bytes([finish]), index=pack_i32([index]), problems={key: problem}
    )
