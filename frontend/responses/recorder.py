"""From what the engine says to the response object and its events: one state machine for streams, whole answers and background mode."""

import time
from collections.abc import Callable, Iterable

import msgspec

from dialects.events import Arguments, CallEnd, CallStart, Content, Markup, Reasoning
from dialects.events import Event as Spoken
from frontend import calls
from frontend.reading import Came, Said, condensed, ending_in, said_in
from frontend.responses.body import Failure, IncompleteDetails, ResponseBody, ResponseUsage
from frontend.responses.events import (
    Event,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseQueued,
    StreamError,
)
from frontend.responses.items import OutputItem
from frontend.responses.outputs import CallOutput, MessageOutput, Output, ReasoningOutput, again
from frontend.responses.scores import Scores
from frontend.responses.status import CANCELLED, COMPLETED, FAILED, IN_PROGRESS, INCOMPLETE, QUEUED, UNFINISHED
from frontend.streams import Event as Arrived
from messages.text import FINISH_LENGTH, Problem, TokenLogprob

CANCELLED_CODE = "cancelled"


class Recorder:
    """`body` is the response as it is; `sink` takes its events; `id_length` is that of ids of calls, where the model's template insists on one.

    Calls in order: `accept`, then any of `take`, at last `conclude` or `fail`.
    """

    def __init__(self, body: ResponseBody, sink: Callable[[Event], None], id_length: Callable[[], int | None] = lambda: None) -> None:
        self.body = body
        self._sink = sink
        self._id_length = id_length
        self._number = 0
        self._finish: str | None = None
        self._closed: list[OutputItem] = []
        self._open: Output | None = None
        self._scores = Scores()

    @property
    def has_spoken(self) -> bool:
        """Some of its output is there."""
        return bool(self._closed) or self._open is not None

    def _emit(self, make: Callable[[int], Event]) -> None:
        self._sink(make(self._number))
        self._number += 1

    def accept(self) -> None:
        """The request is taken: in background mode it waits for its turn, else it is about to be answered."""
        self._emit(lambda number: ResponseCreated(number, self._snapshot()))
        if self.body.background:
            self._emit(lambda number: ResponseQueued(number, self._snapshot()))
        else:
            self._begin()

    def _begin(self) -> None:
        self.body.status = IN_PROGRESS
        self._emit(lambda number: ResponseInProgress(number, self._snapshot()))

    def _snapshot(self) -> ResponseBody:
        return msgspec.structs.replace(self.body)

    def begin_again(self) -> None:
        """Nothing was said yet: what was heard of an attempt that failed does not count."""
        self._scores = Scores()

    def take(self, events: Iterable[Arrived], behind: bool = False) -> None:
        """What has arrived of the one sequence: each text becomes a delta. `behind`: a slow reader gets fewer, longer ones."""
        came = [one for _, one in events]
        for one in came:
            self._scores.hear(_scored(one))
            if (ending := ending_in(one)) is not None:
                self._finish = ending[0]
        spoken = [event for one in came for event in said_in(one)]
        for event in condensed(spoken) if behind else spoken:
            self._say(event)

    def _say(self, event: Spoken) -> None:
        if isinstance(event, Content):
            scores = self._scores.taken(event.text)
            self._opened(MessageOutput).text(event.text, scores)
            return
        if isinstance(event, Reasoning | Markup) or (isinstance(event, Arguments) and event.verbatim):
            self._scores.passed(event.text)
        if isinstance(event, Reasoning):
            self._opened(ReasoningOutput).text(event.text)
        elif isinstance(event, CallStart):
            self._next()
            self._open = CallOutput(len(self._closed), self._emit, event.name, calls.new_id(length=self._id_length()))
        elif isinstance(event, Arguments) and self._open is not None:
            self._open.text(event.text)
        elif isinstance(event, CallEnd):
            self._close(COMPLETED)

    def _opened(self, kind: type[MessageOutput] | type[ReasoningOutput]) -> Output:
        """The item that grows, if it is of this kind; else a new one."""
        if not isinstance(self._open, kind):
            self._next()
            self._open = kind(len(self._closed), self._emit)
        return self._open

    def _next(self) -> None:
        """An item is about to begin."""
        if self.body.status == QUEUED:
            self._begin()
        self._close(_left(self._open))

    def _close(self, status: str) -> None:
        if self._open is not None:
            self._closed.append(self._open.close(status))
            self._open = None

    def _output(self, status: str) -> list[OutputItem]:
        """What there is; `status` is that of the item that has not ended."""
        return list(self._closed) if self._open is None else [*self._closed, self._open.so_far(status)]

    def current(self) -> ResponseBody:
        """The response with its output so far."""
        if not self.has_spoken or self.body.status not in UNFINISHED:
            return self.body
        return msgspec.structs.replace(self.body, output=self._output(IN_PROGRESS))

    def conclude(self, usage: ResponseUsage, now: float | None = None) -> None:
        """Every token has been taken. An answer without anything is an empty message."""
        body, cut = self.body, self._finish == FINISH_LENGTH
        if not self.has_spoken:
            self._opened(MessageOutput)
        self._close(INCOMPLETE if cut else _left(self._open))
        body.output = self._closed
        body.usage = usage
        if cut:
            body.status, body.incomplete_details = INCOMPLETE, IncompleteDetails("max_output_tokens")
        else:
            body.status, body.completed_at = COMPLETED, int(time.time() if now is None else now)
        self._end()

    def fail(self, problem: Problem) -> None:
        """It was cancelled, or cannot be answered. What was said stays in the output."""
        body = self.body
        body.output = self._output(INCOMPLETE)
        if problem.code == CANCELLED_CODE:
            body.status = CANCELLED
        else:
            body.status, body.error = FAILED, Failure(problem.code, problem.message)
        self._end()

    def repeat(self, final: ResponseBody) -> None:
        """The events of a response that has ended, when those of its making are gone: the text of an item is one delta."""
        if final.output and self.body.status == QUEUED:
            self._begin()
        cut_off = len(final.output) - 1 if final.status in (FAILED, CANCELLED) else None
        for index, item in enumerate(final.output):
            output = again(item, index, self._emit)
            if index != cut_off or item.status == COMPLETED:
                output.close(item.status)
        self.body = final
        self._end()

    def _end(self) -> None:
        self._emit(self._last)

    def _last(self, number: int) -> Event:
        if self.body.status == COMPLETED:
            return ResponseCompleted(number, self.body)
        if self.body.status == INCOMPLETE:
            return ResponseIncomplete(number, self.body)
        if self.body.status == FAILED:
            return ResponseFailed(number, self.body)
        return StreamError(number, CANCELLED_CODE, "The response was cancelled.")


def _left(output: Output | None) -> str:
    """The status of an item that another one follows, or the end: a call would have ended by itself."""
    return INCOMPLETE if isinstance(output, CallOutput) else COMPLETED


def _scored(came: Came) -> Iterable[TokenLogprob]:
    message = came.message if isinstance(came, Said) else came
    return () if message is None or isinstance(message, str) else message.logprobs


def replay(final: ResponseBody, sink: Callable[[Event], None]) -> None:
    """All events of a response that has ended, from `final` alone."""
    begun = msgspec.structs.replace(final, status=QUEUED, output=[], usage=None, completed_at=None, error=None, incomplete_details=None)
    recorder = Recorder(begun, sink)
    recorder.accept()
    recorder.repeat(final)
