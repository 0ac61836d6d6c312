"""Rows that follow a grammar: where each is in it, and what its next token may be, worked out on a thread of its own while the device computes."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from grammar.matcher import Library, Matcher
from transport.columns import I32, I64

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 30.0
"""The longest a step waits for its masks: then something is wrong, and the rows without one fail."""
LOOK_SECONDS = 0.1
CHUNK = 16
SLOW_SECONDS = 0.005
"""A mask that takes longer is worked out by itself, so that its row is known for it."""
SLOW_ALLOWANCE = 0.1
"""Of slow rows together, in one step; those beyond fail, for the others of the step wait for them."""


@dataclass(eq=False, slots=True)
class MatchedRow:
    """`tokens` that it has generated and the matcher has yet to accept. `mask` is for the token behind the first `at`, -1 before there is one;
    None when any will do. `over`: an end token was among the accepted. `failed`: why it cannot go on. `cost`: seconds that its last mask took, as far
    as known. All but the matcher, which is the thread's, under the lock.
    """

    matcher: Matcher
    tokens: list[int] = field(default_factory=list)
    accepted: int = 0
    over: bool = False
    at: int = -1
    mask: I32 | None = None
    failed: str = ""
    cost: float = 0.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Batch row `index` is to be sampled behind its first `at` generated tokens."""

    index: int
    row: MatchedRow
    at: int


@dataclass(frozen=True, slots=True)
class Masks:
    """`words` [N, W] of batch rows `row` [N], as kernels.reference.mask takes them. A row that has failed may have any token."""

    row: I32
    words: I32


class Matching:
    """`rows` by slot; `grammars` that they can be given, by number: `worker.grammars` adds to them, from another thread.

    A mask has words for all of the model's vocabulary. All methods but `use`, `note`, `wake` and `fail` are for the thread that takes plans.
    """

    def __init__(self, vocab: int) -> None:
        self.rows: dict[int, MatchedRow] = {}
        self._words = -(-vocab // 32)
        self.grammars: dict[int, Matcher] = {}
        self._library: Library | None = None
        self._due: dict[MatchedRow, None] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def use(self, library: Library) -> None:
        """The grammars are of this one."""
        self._library = library

    def knows(self, grammars: I32) -> bool:
        """All of these numbers are of grammars that can be given."""
        return all(number in self.grammars for number in grammars.tolist())

    def admit(self, slot: int, grammar: int) -> None:
        """A row begins, in a slot that has been released."""
        row = self.rows[slot] = MatchedRow(self.grammars[grammar].copy())
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="masks", daemon=True)
            self._thread.start()
        self.note(row, [])

    def release(self, slot: int) -> None:
        row = self.rows.pop(slot, None)
        if row is not None:
            with self._changed:
                self._due.pop(row, None)

    def note(self, row: MatchedRow, tokens: list[int]) -> None:
        """Tokens that it has generated. From any thread; `wake` when all of a step have been noted, that their masks are worked out together."""
        with self._changed:
            row.tokens += tokens
            self._due[row] = None

    def wake(self) -> None:
        """Work out the masks of all rows that have something new, before somebody waits for them. From any thread."""
        with self._changed:
            self._changed.notify_all()

    def fail(self, row: MatchedRow, why: str) -> None:
        """Nothing more is to be matched. From any thread."""
        with self._changed:
            row.failed = row.failed or why
            self._changed.notify_all()

    def wanted(self, slot: I32, generated: I64) -> list[Wanted]:
        """Of the batch rows of these slots, which have `generated` so many tokens: those that follow a grammar."""
        counts = generated.tolist()
        return [Wanted(index, row, counts[index]) for index, number in enumerate(slot.tolist()) if (row := self.rows.get(number)) is not None]

    def wait(self, wanted: list[Wanted], check: Callable[[], object] = lambda: None) -> Masks:
        """The masks, when the tokens before have been noted and matched; `check` is called now and then meanwhile, and may raise."""
        ends = time.monotonic() + PATIENCE_SECONDS
        words = np.full((len(wanted), self._words), -1, np.int32)
        with self._changed:
            self._changed.notify_all()
            while late := [one.row for one in wanted if one.row.at != one.at and not one.row.failed]:
                if not self._changed.wait(LOOK_SECONDS):
                    check()
                if time.monotonic() > ends:
                    for row in late:
                        row.failed = f"no mask within {PATIENCE_SECONDS:g} s"
            for place, one in enumerate(wanted):
                if not one.row.failed and one.row.mask is not None:
                    known = one.row.mask[: self._words]
                    words[place, : len(known)] = known
                    words[place, len(known) :] = 0
        return Masks(np.array([one.index for one in wanted], np.int32), words)

    def unmatched(self, wanted: list[Wanted], rows: int) -> NDArray[np.bool_]:
        """Which of a batch of so many rows have failed."""
        found = np.zeros(rows, np.bool_)
        found[[one.index for one in wanted if one.row.failed]] = True
        return found

    # The thread

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._due)
                rows, self._due = [row for row in self._due if not row.failed], {}
                parts = [row.tokens for row in rows]
                for row in rows:
                    row.tokens = []
            try:
                self._match(rows, parts)
            except BaseException as error:  # a panic of Rust is no Exception; rows that wait for ever would be worse
                log.exception("the masks of %d rows could not be worked out", len(rows))
                for row in rows:
                    self.fail(row, f"its mask could not be worked out ({type(error).__name__})")

    def _match(self, rows: list[MatchedRow], parts: list[list[int]]) -> None:
        assert self._library is not None  # there are rows
        going = []
        for row, tokens in zip(rows, parts, strict=True):
            row.accepted += len(tokens)
            row.over = row.over or not self._library.ends.isdisjoint(tokens)
            if row.over:
                self._end(row)
            else:
                going.append((row, tokens))
        self._accept(going)
        self._mask_all([row for row, _ in going if not row.failed])

    def _accept(self, going: list[tuple[MatchedRow, list[int]]]) -> None:
        """A token each as a rule."""
        assert self._library is not None  # there are rows
        single = [(row, tokens[0]) for row, tokens in going if len(tokens) == 1]
        good = self._library.accept([(row.matcher, token) for row, token in single]) if single else []
        bad = [row for (row, _), is_good in zip(single, good, strict=True) if not is_good]
        bad += [row for row, tokens in going if len(tokens) > 1 and not row.matcher.accept(tokens)]
        for row in bad:
            self.fail(row, row.matcher.failed)

    def _mask_all(self, going: list[MatchedRow]) -> None:
        usual, slow = ([row for row in going if (row.cost > SLOW_SECONDS) == is_slow] for is_slow in (False, True))
        for begin in range(0, len(usual), CHUNK):
            self._mask(usual[begin : begin + CHUNK], time.monotonic)
        spent = 0.0
        for row in sorted(slow, key=lambda row: row.cost):
            if spent > SLOW_ALLOWANCE:
                self.fail(row, "its grammar is too slow beside others like it")
            else:
                self._mask([row], time.thread_time)
                spent += row.cost

    def _end(self, row: MatchedRow) -> None:
        """What is sampled behind an end token is not used."""
        with self._changed:
            row.mask, row.at = None, row.accepted
            self._changed.notify_all()

    def _mask(self, rows: list[MatchedRow], clock: Callable[[], float]) -> None:
        assert self._library is not None  # there are rows
        began = clock()
        masks = self._library.masks([row.matcher for row in rows])
        cost = clock() - began
        with self._changed:
            for row, mask in zip(rows, masks, strict=True):
                row.mask, row.at, row.cost = mask, row.accepted, cost
                row.failed = row.failed or row.matcher.failed
            self._changed.notify_all()
