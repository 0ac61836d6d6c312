"""From constraints to programs that are known to compile: in threads, each with a process for the trial, so that no stream waits for a grammar."""

import asyncio
import contextlib
import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grammar.errors import GrammarError
from grammar.program import program_of
from messages.constraint import Constraint
from messages.text import Problem
from tokenizer_proc import problems
from tokenizer_proc.grammar_child import ChildError, GrammarChild, OverrunError

log = logging.getLogger(__name__)

THREADS = 2
MOST_WAITING = 64
KEPT_CHARACTERS = 16 << 20
"""Of constraints whose verdict is remembered, and their programs."""

Done = Callable[[str], None]
Failed = Callable[[Problem], None]


@dataclass(frozen=True)
class Verdict:
    """`program`, when nothing is `wrong`. `passing`: another time it might be right."""

    program: str
    wrong: str = ""
    passing: bool = False


class Verdicts:
    """The last ones, by constraint."""

    def __init__(self) -> None:
        self._of: OrderedDict[Constraint, Verdict] = OrderedDict()
        self._characters = 0

    def get(self, constraint: Constraint) -> Verdict | None:
        found = self._of.get(constraint)
        if found is not None:
            self._of.move_to_end(constraint)
        return found

    def put(self, constraint: Constraint, verdict: Verdict) -> None:
        if verdict.passing or constraint in self._of:
            return
        self._of[constraint] = verdict
        self._characters += _size(constraint, verdict)
        while self._characters > KEPT_CHARACTERS:
            self._characters -= _size(*self._of.popitem(last=False))


def _size(constraint: Constraint, verdict: Verdict) -> int:
    return 100 + len(constraint.text) + len(verdict.program) + len(verdict.wrong)


@dataclass
class GrammarChecks:
    """Used on the loop. The processes are started when there is something to try, and end with this one."""

    loop: asyncio.AbstractEventLoop
    run_dir: Path
    waiting: int = 0
    _verdicts: Verdicts = field(default_factory=Verdicts)
    _jobs: "queue.SimpleQueue[tuple[Constraint, Done, Failed]]" = field(default_factory=queue.SimpleQueue)
    _threads: int = 0

    def check(self, constraint: Constraint, done: Done, failed: Failed) -> None:
        """Then one of `done`, with the program, and `failed` on the loop, perhaps at once."""
        known = self._verdicts.get(constraint)
        if known is not None:
            self._tell(constraint, known, done, failed)
        elif self.waiting >= MOST_WAITING:
            failed(problems.overloaded())
        else:
            self.waiting += 1
            self._jobs.put((constraint, done, failed))
            if self._threads < min(THREADS, self.waiting):
                self._threads += 1
                threading.Thread(target=self._work, name="grammars", daemon=True).start()

    def _tell(self, constraint: Constraint, verdict: Verdict, done: Done, failed: Failed) -> None:
        if verdict.wrong:
            failed(problems.bad_grammar(constraint.param, verdict.wrong))
        else:
            done(verdict.program)

    def _work(self) -> None:
        child = GrammarChild(self.run_dir)
        while True:
            constraint, done, failed = self._jobs.get()
            try:
                verdict = self._tried(child, constraint)
            except ChildError as error:
                log.error("a grammar cannot be tried: %s", error)
                self._back(self._not_tried, failed, str(error))
            except Exception as error:  # whatever is wrong with one, this thread tries the next
                log.exception("a grammar could not be tried")
                self._back(self._not_tried, failed, repr(error))
            else:
                self._back(self._finish, constraint, verdict, done, failed)

    def _tried(self, child: GrammarChild, constraint: Constraint) -> Verdict:
        try:
            program = program_of(constraint)
        except GrammarError as error:
            return Verdict("", str(error))
        try:
            wrong = child.ask(program)
        except OverrunError as error:
            return Verdict("", str(error), passing=True)
        return Verdict("" if wrong else program, wrong)

    def _back(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(callback, *arguments)

    def _finish(self, constraint: Constraint, verdict: Verdict, done: Done, failed: Failed) -> None:
        self.waiting -= 1
        self._verdicts.put(constraint, verdict)
        self._tell(constraint, verdict, done, failed)

    def _not_tried(self, failed: Failed, why: str) -> None:
        self.waiting -= 1
        failed(problems.internal(f"The answer's form cannot be enforced here: {why}."))
