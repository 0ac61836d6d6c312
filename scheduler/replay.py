"""Run a recording again: a fresh engine, fed with the same, must come to the same plans, byte for byte."""

from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from messages.plan import StepPlan
from scheduler.engine import Engine
from scheduler.errors import ContractError, InvariantError
from scheduler.recorder import digest_of
from scheduler.recording import Closing, Drawn, Ended, FailedAll, Frame, Lost, Opened, Planned, Reader, Received, Repaired, Turn


class ReplayError(ValueError):
    """This recording cannot be replayed."""


@dataclass(slots=True)
class ReplayReport:
    """What was compared, and the first `difference` as a sentence (None: every plan was the same); nothing is compared behind it.

    `messages` received, `turns` taken, `plans` that were the same. `unread`: bytes after the last whole frame of the file.
    """

    messages: int = 0
    turns: int = 0
    plans: int = 0
    difference: str | None = None
    unread: int = 0


class _DifferenceError(Exception):
    pass


def replay(path: str | Path) -> ReplayReport:
    """Replay a recording that has tokens. Raises ReplayError, RecordingError and OSError."""
    with Reader(path) as reader:
        if not reader.header.tokens:
            raise ReplayError("this recording has no token ids and cannot be replayed, only simulated: record with --record-tokens")
        replaying = _Replaying(reader)
        try:
            replaying.run()
        except _DifferenceError as difference:
            replaying.report.difference = str(difference)
        replaying.report.unread = reader.unread
        return replaying.report


class _Replaying:
    def __init__(self, reader: Reader) -> None:
        self.report = ReplayReport()
        self._frames: Iterator[Frame] = (content for content in reader if not isinstance(content, Ended))
        self._tokenizers = reader.header.args.tokenizers
        self._engine = Engine(reader.header.args, self._session)
        self._encode = msgspec.msgpack.Encoder().encode
        self._plans: deque[StepPlan] = deque()
        self._broken: InvariantError | None = None
        self._cut = False

    def run(self) -> None:
        for content in self._frames:
            if self._broken is not None and not isinstance(content, Repaired):
                raise _DifferenceError(f"after {self._where()} the replay breaks an invariant and the recording does not: {self._broken}")
            self._broken = None
            try:
                self._feed(content)
            except InvariantError as error:
                self._broken = error
            if self._cut:
                return
            self._plans.extend(message for _, message in self._engine.take() if isinstance(message, StepPlan))

    def _session(self) -> int:
        """The number that was drawn at this moment of the recording."""
        drawn = next(self._frames, None)
        if drawn is None:  # the recording was cut off in the middle of a call
            self._cut = True
            return 0
        if not isinstance(drawn, Drawn):
            raise _DifferenceError(f"after {self._where()} the replay begins a new session and the recording does not")
        return drawn.session

    def _feed(self, content: Frame) -> None:
        engine = self._engine
        match content:
            case Received():
                self.report.messages += 1
                self._receive(content)
            case Turn():
                self._nothing_left()
                self.report.turns += 1
                engine.advance(content.now)
            case Planned():
                self._compare(content)
            case Drawn():
                raise _DifferenceError(f"after {self._where()} the recording begins session {content.session} and the replay does not")
            case Opened():
                engine.open()
            case Lost() if content.tokenizer in self._tokenizers:
                engine.tokenizer_lost(content.tokenizer, content.incarnation)
            case Closing():
                engine.close()
            case FailedAll():
                engine.fail_all(content.problem)
            case Repaired():
                engine.repair(InvariantError(content.problems))
            case _:
                raise ReplayError(f"this recording cannot be replayed: {type(content).__name__} does not belong into it")

    def _receive(self, received: Received) -> None:
        with suppress(ContractError):  # the service dropped it, too
            try:
                self._engine.receive(received.message, received.now)
            except MemoryError as error:
                raise ReplayError("this machine has too little memory to replay the scheduler of this recording") from error

    def _compare(self, planned: Planned) -> None:
        if not self._plans:
            raise _DifferenceError(f"step {planned.step} of session {planned.session} is in the recording only, after {self._where()}")
        plan = self._plans.popleft()
        if (plan.session, plan.step, digest_of(self._encode(plan))) != (planned.session, planned.step, planned.digest):
            raise _DifferenceError(
                f"step {planned.step} of session {planned.session} is another plan in the replay (its step {plan.step}), after {self._where()}"
            )
        self.report.plans += 1

    def _nothing_left(self) -> None:
        if self._plans:
            plan = self._plans[0]
            raise _DifferenceError(f"step {plan.step} of session {plan.session} is in the replay only, after {self._where()}")

    def _where(self) -> str:
        return f"{self.report.messages} messages and {self.report.turns} turns"
