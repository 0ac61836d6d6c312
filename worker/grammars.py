"""The grammars of a session, compiled on a thread of their own that gives way to the others."""

import logging
import os
import queue
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from grammar.errors import GrammarError
from grammar.matcher import Library, Matcher
from grammar.vocabulary_file import TokenBytes, read_vocabulary
from messages.plan import Prepare
from messages.result import Prepared
from messages.vocabulary import VOCABULARY_FILE
from transport.private_file import Mark, mark
from worker.matching import Matching

log = logging.getLogger(__name__)

NICE = 10


class Grammars:
    """For the rows of `matching`; the vocabulary is in `folder`. `deliver` gets the answers, on another thread, until `close`."""

    def __init__(self, folder: Path, matching: Matching, deliver: Callable[[Prepared], object]) -> None:
        self._folder = folder
        self._matching = matching
        self._deliver = deliver
        self._library: Library | None = None
        self._tokens: TokenBytes | None = None
        self._mark: Mark | None = None
        self._tried = False
        self._orders: queue.SimpleQueue[tuple[Prepare, dict[int, Matcher]]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._open = True
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """A session begins, without any grammar."""
        self._matching.grammars = {}

    def open_ahead(self) -> None:
        """Read the vocabulary once it is there: this takes some tenths of a second, in which nothing else of this process runs."""
        if not self._tried and (self._folder / VOCABULARY_FILE).exists():
            self._tried = True
            try:
                self._opened()
            except GrammarError as error:
                log.info("no answer can be given a form: %s", error)

    def prepare(self, order: Prepare) -> None:
        """Compile, then answer."""
        for number in order.forget:
            self._matching.grammars.pop(number, None)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="grammars", daemon=True)
            self._thread.start()
        self._orders.put((order, self._matching.grammars))

    def close(self) -> None:
        """Nothing is delivered from now on."""
        with self._lock:
            self._open = False

    def _opened(self) -> Library:
        """Of the tokens in the file. It is written anew whenever a tokenizer process starts; what was read may be of a model before this one."""
        with self._lock:
            found = mark(self._folder / VOCABULARY_FILE)
            if self._library is None or found != self._mark:
                tokens = read_vocabulary(self._folder)
                if self._library is None or tokens != self._tokens:
                    from grammar.llg import LlgLibrary  # most workers never need it

                    self._library = LlgLibrary(tokens)
                self._tokens, self._mark = tokens, found
            return self._library

    def _run(self) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while True:
            order, compiled = self._orders.get()
            answer = Prepared(session=order.session, grammar=order.grammar, problem=self._compile(order, compiled))
            with self._lock:
                if self._open:
                    self._deliver(answer)

    def _compile(self, order: Prepare, compiled: dict[int, Matcher]) -> str:
        """What is wrong with it; else it is among `compiled`, which is of its session."""
        try:
            library = self._opened()
            matcher = library.compile(order.program)
            library.masks([matcher])  # its copies find the first one known
        except GrammarError as error:
            return str(error)
        except BaseException as error:  # a panic of Rust is no Exception; the scheduler waits for an answer
            log.exception("a grammar could not be compiled")
            return f"it could not be compiled ({type(error).__name__})"
        self._matching.use(library)
        compiled[order.grammar] = matcher
        return ""
