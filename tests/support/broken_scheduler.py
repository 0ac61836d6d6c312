"""A scheduler that dies of a request, for tests alone: `python -m tests.support.broken_scheduler` with PAGEWIRE_TEST_BREAK=HOW:WHEN:FILE.

It ends by a segmentation fault whenever a prompt has all the token ids of WHEN, which are joined by commas, one after the other; each time a line is
added to FILE. HOW `admit`: when it is let in; `step`: when its tokens are about to be computed.
"""

import os
import signal
from pathlib import Path
from typing import Any

import scheduler.service
from messages.admit import Admit
from messages.plan import StepPlan
from scheduler.__main__ import main
from scheduler.engine import Engine, Outgoing
from transport.columns import pack_i32


class Broken(Engine):
    """Dies of the poison."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._break, when, self._done = os.environ["PAGEWIRE_TEST_BREAK"].split(":", 2)
        self._poison = pack_i32([int(token) for token in when.split(",")])

    def receive(self, message: Any, now: float) -> None:
        if isinstance(message, Admit) and self._break == "admit" and self._poison in message.prompt:
            self._die()
        super().receive(message, now)

    def take(self) -> list[Outgoing]:
        out = super().take()
        for _, message in out:
            if isinstance(message, StepPlan) and self._break == "step" and message.prefill is not None and self._poison in message.prefill.tokens:
                self._die()
        return out

    def _die(self) -> None:
        with Path(self._done).open("a") as file:
            file.write(f"{os.getpid()}\n")
        os.kill(os.getpid(), signal.SIGSEGV)


if __name__ == "__main__":
    setattr(scheduler.service, "Engine", Broken)  # noqa: B010
    main()
