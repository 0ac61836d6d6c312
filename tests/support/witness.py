"""What an onlooker knows of rows whose worker keeps dying: who may be blamed for it, and who must be."""

import math
from collections import Counter

from scheduler.suspects import ALONE, PROOF, STRIKES
from tests.support.scheduler_bench import Bench


def bound(suspects: int) -> int:
    """Failures that one culprit among so many rows may cost."""
    return STRIKES + math.ceil(math.log2(suspects)) + ALONE - 1


class Witness:
    """Call `death` before each death of the bench's worker. The seeds of all rows are their keys.

    `may`: rows that were in flight alone at ALONE deaths without getting PROOF tokens in any session between them; nobody else may be failed.
    `must`: those who were in flight at every death since the first of these.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._alone: Counter[int] = Counter()
        self._in_a_row: Counter[int] = Counter()
        self._had: dict[int, int] = {}
        self.may: set[int] = set()
        self.must: set[int] = set()

    def death(self) -> None:
        """The worker is about to die, with what it has in flight."""
        self._clear()
        running = self._bench.worker.in_flight()
        if not running:
            return
        self._in_a_row = Counter({key: self._in_a_row[key] for key in running})
        if len(running) == 1:
            for counter, blamed in ((self._alone, self.may), (self._in_a_row, self.must)):
                counter.update(running)
                blamed |= {key for key in running if counter[key] >= ALONE}

    def _clear(self) -> None:
        """Acquit whoever has got on since the last death."""
        for key, tokens in self._bench.clients["tokenizer0"].tokens.items():
            if len(tokens) - self._had.get(key, 0) >= PROOF:
                del self._alone[key], self._in_a_row[key]
            self._had[key] = len(tokens)

    def check(self) -> set[int]:
        """Who has been failed. Raises AssertionError unless all who must be are, and nobody who may not be."""
        failed = set(self._bench.clients["tokenizer0"].problems)
        assert self.must <= failed <= self.may, (self.must, failed, self.may)
        return failed
