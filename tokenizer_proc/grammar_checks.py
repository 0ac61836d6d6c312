"""From constraints to programs that are known to compile: in threads, each with a process for the trial, so that no stream waits for a grammar."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from messages.constraint import Constraint
from messages.text import Problem
from tokenizer_proc import problems
from tokenizer_proc.grammar_line import Asker, Done, Failed, Room, Trial, Turns
from tokenizer_proc.grammar_trier import Outcome, Trier
from tokenizer_proc.verdicts import Form, Verdict, Verdicts, form_of

THREADS = 2
"""For forms that take no longer than `grammar_child.QUICK_SECONDS`. One more is tried beside them when it takes longer."""
MOST_BYTES = 128 << 20
"""Of requests that wait for the trial of their form; one tenant may have half of it."""
WAIT_SECONDS = 60.0
"""A form that has not been tried by then is not tried any more."""
OVERHEAD = 1 << 10


@dataclass
class GrammarChecks:
    """Used on the loop. The processes are started when there is something to try, and end with this one. `waiting`: requests that do."""

    loop: asyncio.AbstractEventLoop
    run_dir: Path
    waiting: int = 0
    clock: Callable[[], float] = time.monotonic
    _room: Room = field(default_factory=lambda: Room(MOST_BYTES))
    _verdicts: Verdicts = field(default_factory=Verdicts)
    _trials: dict[Form, Trial] = field(default_factory=dict)
    _quick: Turns = field(default_factory=Turns)
    _slow: Turns = field(default_factory=Turns)
    _extension: threading.Semaphore = field(default_factory=threading.Semaphore)
    _begun: set[Trial] = field(default_factory=set)
    _idle: list[Trier] = field(default_factory=list)

    def check(
        self, constraint: Constraint, done: Done, failed: Failed, *, tenant: str = "", size: int = 0, wanted: Callable[[], bool] = lambda: True
    ) -> None:
        """Then one of `done`, with the program, and `failed` on the loop, perhaps at once, unless nobody wants it any more. `size`: bytes that the
        request has besides."""
        asker = Asker(constraint, tenant, OVERHEAD + size + len(constraint.text), wanted, done, failed)
        known = self._verdicts.get(form_of(constraint))
        if known is not None:
            _tell(asker, known)
        elif not self._room.take(tenant, asker.size):
            failed(problems.overloaded())
        else:
            self.waiting += 1
            self._wait(asker)
            self._begin()

    def _wait(self, asker: Asker) -> None:
        form = form_of(asker.constraint)
        trial = self._trials.setdefault(form, Trial(asker.constraint, self.clock()))
        if not trial.begun and all(other.tenant != asker.tenant for other in trial.askers):
            (self._slow if trial.slow else self._quick).put(asker.tenant, trial)
        trial.askers.append(asker)

    def _begin(self) -> None:
        """What can be tried now."""
        if self._extension.acquire(blocking=False):
            trial = self._next(self._slow)
            if trial is None:
                self._extension.release()
            else:
                trial.extended = True
                self._try(trial)
        while sum(not trial.extended for trial in self._begun) < THREADS and (trial := self._next(self._quick)) is not None:
            self._try(trial)

    def _next(self, turns: Turns) -> Trial | None:
        while (trial := turns.take()) is not None:
            if trial.slow and turns is self._quick:
                continue  # left in the line of another tenant when it was found to take long; it is in the other lines now
            if not any(asker.wanted() for asker in trial.askers):
                self._end(trial, None)
            elif self.clock() - trial.since > WAIT_SECONDS:
                self._end(trial, problems.overloaded())
            else:
                return trial
        return None

    def _try(self, trial: Trial) -> None:
        trial.begun = True
        self._begun.add(trial)
        trier = self._idle.pop() if self._idle else Trier(self.run_dir, self._back, self._extend)
        trier.give(trial)

    def _extend(self, trial: Trial) -> bool:
        """On a thread."""
        if not trial.extended and self._extension.acquire(blocking=False):
            trial.extended = True
            self._soon(self._begin)
        return trial.extended

    def _back(self, trier: Trier, trial: Trial, outcome: Outcome) -> None:
        """On a thread."""
        self._soon(self._came, trier, trial, outcome)

    def _soon(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(callback, *arguments)

    def _came(self, trier: Trier, trial: Trial, outcome: Outcome) -> None:
        self._idle.append(trier)
        self._begun.remove(trial)
        if trial.extended:
            self._extension.release()
        if outcome is None:
            trial.begun, trial.slow = False, True
            for tenant in dict.fromkeys(asker.tenant for asker in trial.askers):
                self._slow.put(tenant, trial)
        else:
            self._end(trial, outcome)
        self._begin()

    def _end(self, trial: Trial, outcome: Verdict | Problem | None) -> None:
        """None: nobody wants it."""
        trial.begun = True  # it may stand in the lines of other tenants
        del self._trials[form_of(trial.constraint)]
        if isinstance(outcome, Verdict):
            self._verdicts.put(form_of(trial.constraint), outcome)
        for asker in trial.askers:
            self.waiting -= 1
            self._room.give_back(asker.tenant, asker.size)
            if outcome is not None:
                _tell(asker, outcome)


def _tell(asker: Asker, outcome: Verdict | Problem) -> None:
    if isinstance(outcome, Problem):
        asker.failed(outcome)
    elif outcome.wrong:
        asker.failed(problems.bad_grammar(asker.constraint, outcome.wrong, outcome.place))
    else:
        asker.done(outcome.program)
