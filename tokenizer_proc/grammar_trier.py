"""A thread that tries forms, one after another, with a process of its own."""

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from grammar.errors import GrammarError
from grammar.program import program_of
from messages.text import Problem
from tokenizer_proc import problems
from tokenizer_proc.grammar_child import BusyError, ChildError, GrammarChild, OverrunError, PostponedError
from tokenizer_proc.grammar_line import Trial
from tokenizer_proc.verdicts import Verdict

log = logging.getLogger(__name__)

Outcome = Verdict | Problem | None
"""None: it takes long, and is to be tried again when there is time for such forms."""


class Trier:
    """`back` gets each outcome and `extend` says whether a trial that takes long may go on, both on the thread."""

    def __init__(self, run_dir: Path, back: Callable[["Trier", Trial, Outcome], None], extend: Callable[[Trial], bool]) -> None:
        self._child = GrammarChild(run_dir)
        self._back = back
        self._extend = extend
        self._trials: queue.SimpleQueue[Trial] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="grammars", daemon=True).start()

    def give(self, trial: Trial) -> None:
        """To one that has nothing to do."""
        self._trials.put(trial)

    def _run(self) -> None:
        while True:
            trial = self._trials.get()
            self._back(self, trial, self._outcome(trial))

    def _outcome(self, trial: Trial) -> Outcome:
        try:
            return self._tried(trial)
        except ChildError as error:
            log.error("a grammar cannot be tried: %s", error)
            return problems.no_trial(str(error))
        except Exception as error:  # whatever is wrong with one, this thread tries the next
            log.exception("a grammar could not be tried")
            return problems.no_trial(repr(error))

    def _tried(self, trial: Trial) -> Outcome:
        try:
            program = program_of(trial.constraint)
            found = self._child.ask(program, lambda: self._extend(trial))
        except GrammarError as error:
            return Verdict("", str(error))
        except OverrunError as error:
            return Verdict("", str(error), passing=error.passing)
        except BusyError:
            return problems.overloaded()
        except PostponedError:
            return None
        return Verdict("" if found.wrong else program, found.wrong, found.place)
