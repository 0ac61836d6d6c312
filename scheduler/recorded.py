"""An engine that writes down all that is asked of it and what it plans."""

from collections.abc import Callable

from messages.admit import Abort, Admit, FromTokenizerProc
from messages.plan import StepPlan
from messages.result import FromWorker
from messages.text import Problem
from scheduler.args import SchedulerArgs
from scheduler.engine import Engine, Outgoing
from scheduler.errors import InvariantError
from scheduler.recorder import Recorder
from scheduler.recording import CANCELLED, ERROR, LENGTH, STOP, STOP_STRING
from scheduler.requests import WAITING, Request

REASON_OF = {"finished_stop": STOP, "finished_length": LENGTH, "errors": ERROR}


class RecordedEngine(Engine):
    """The same engine. What it has planned must be taken between two calls of `advance`, or a replay cannot tell the turns apart."""

    def __init__(self, args: SchedulerArgs, new_session: Callable[[], int], recorder: Recorder) -> None:
        super().__init__(args, self._draw)
        self._drawn_from = new_session
        self._recorder = recorder
        self._aborted: str | None = None

    def open(self) -> None:
        self._recorder.opened()
        super().open()

    def receive(self, message: FromTokenizerProc | FromWorker, now: float) -> None:
        self._recorder.received(message, now)
        if isinstance(message, Abort):
            self._aborted = STOP_STRING if message.finished else CANCELLED
        try:
            super().receive(message, now)
        finally:
            self._aborted = None
            if isinstance(message, Admit):
                for key in message.keys:
                    if key not in self._live:
                        self._recorder.refused(key)

    def advance(self, now: float) -> None:
        self._recorder.turn(now)
        super().advance(now)

    def take(self) -> list[Outgoing]:
        out = super().take()
        for _, message in out:
            if isinstance(message, StepPlan):
                self._recorder.planned(message)
        return out

    def tokenizer_lost(self, name: str, incarnation: int | None = None) -> None:
        self._recorder.lost(name, incarnation)
        super().tokenizer_lost(name, incarnation)

    def close(self) -> None:
        self._recorder.closing()
        super().close()

    def fail_all(self, problem: Problem) -> None:
        self._recorder.failed_all(problem)
        super().fail_all(problem)

    def repair(self, error: InvariantError) -> None:
        self._recorder.repaired(error.problems)
        super().repair(error)

    def _draw(self) -> int:
        number = self._drawn_from()
        self._recorder.drawn(number)
        return number

    def _end(self, request: Request, counter: str) -> None:
        tokens = request.tokens if self.session is None or request.slot == WAITING else self.session.slots.known(request.slot)
        self._recorder.ended(request.key, self._aborted or REASON_OF.get(counter, CANCELLED), tokens, request.prompt_len)
        super()._end(request, counter)
