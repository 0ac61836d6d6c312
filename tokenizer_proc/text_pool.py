"""Threads for work on text, so that a long text never keeps the event loop from the streams of others."""

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from messages.text import Problem
from tokenizer_proc import problems
from tokenizer_proc.errors import RequestError

log = logging.getLogger(__name__)

R = TypeVar("R")
LONG = 64 << 10  # bytes; longer texts have a thread of their own, so that short ones do not wait behind them

Job = Callable[[], None]


class TextPool:
    """One thread for short texts, one for long ones; each works in order. Threads are daemons: the process ends without waiting for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._short, self._long = (self._start(name) for name in ("short-texts", "long-texts"))
        self.waiting = 0

    def _start(self, name: str) -> "queue.SimpleQueue[Job]":
        jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        threading.Thread(target=_work, args=(jobs,), name=name, daemon=True).start()
        return jobs

    def run(self, size: int, work: Callable[[], R], done: Callable[[R], None], failed: Callable[[Problem], None]) -> None:
        """Do `work` in a thread; then one of `done` and `failed` on the loop. `size`: bytes of text it is about."""

        def job() -> None:
            try:
                result = work()
            except RequestError as error:
                self._back(failed, error.problem)
            except BaseException as error:  # a Rust panic is no Exception; whatever it was, it must not end this thread
                log.exception("work on a text of %d bytes failed", size)
                self._back(failed, problems.internal(f"The text could not be processed ({type(error).__name__})."))
            else:
                self._back(done, result)

        self.waiting += 1
        (self._long if size > LONG else self._short).put(job)

    def _back(self, callback: Callable[[Any], None], value: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._finish, callback, value)

    def _finish(self, callback: Callable[[Any], None], value: object) -> None:
        self.waiting -= 1
        callback(value)


def _work(jobs: "queue.SimpleQueue[Job]") -> None:
    while True:
        jobs.get()()
