"""From what the engine says to the response object and its events: one state machine for streams, whole answers and background mode."""

import time
from collections.abc import Callable, Iterable

import msgspec

from frontend.responses import body as bodies
from frontend.responses.body import Failure, IncompleteDetails, ResponseBody, ResponseUsage
from frontend.responses.events import (
    ContentPartAdded,
    ContentPartDone,
    Event,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseQueued,
    StreamError,
)
from frontend.responses.items import ASSISTANT, COMPLETED, IN_PROGRESS, INCOMPLETE, Message, OutputText, new_id
from frontend.streams import Event as Arrived
from messages.text import FINISH_LENGTH, Ended, Problem

CANCELLED_CODE = "cancelled"
Emit = Callable[[Callable[[int], Event]], None]
"""Takes what makes an event of its number."""


class MessageOutput:
    """The item that a text becomes: opened with its first piece. `index`: its place in the output."""

    def __init__(self, index: int, emit: Emit, name: str | None = None) -> None:
        self._emit = emit
        self._texts: list[str] = []
        self._item = Message(name or new_id(), IN_PROGRESS, ASSISTANT, [])
        self._where = self._item.id, index, 0
        self._index = index
        emit(lambda number: OutputItemAdded(number, index, self._item))
        emit(lambda number: ContentPartAdded(number, *self._where, OutputText("")))

    def text(self, text: str) -> None:
        self._texts.append(text)
        self._emit(lambda number: OutputTextDelta(number, *self._where, text))

    def so_far(self, status: str = IN_PROGRESS) -> Message:
        """The item with its text until now."""
        return msgspec.structs.replace(self._item, status=status, content=[OutputText("".join(self._texts))])

    def close(self, status: str) -> Message:
        item = self.so_far(status)
        part = item.content[0]
        self._emit(lambda number: OutputTextDone(number, *self._where, part.text))
        self._emit(lambda number: ContentPartDone(number, *self._where, part))
        self._emit(lambda number: OutputItemDone(number, self._index, item))
        return item


class Recorder:
    """`body` is the response as it is; `sink` takes its events. Calls in order: `accept`, then any of `take`, at last `conclude` or `fail`."""

    def __init__(self, body: ResponseBody, sink: Callable[[Event], None]) -> None:
        self.body = body
        self._sink = sink
        self._number = 0
        self._finish: str | None = None
        self._output: MessageOutput | None = None

    @property
    def has_spoken(self) -> bool:
        """Some of its text is there."""
        return self._output is not None

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
        self.body.status = bodies.IN_PROGRESS
        self._emit(lambda number: ResponseInProgress(number, self._snapshot()))

    def _snapshot(self) -> ResponseBody:
        return msgspec.structs.replace(self.body)

    def take(self, events: Iterable[Arrived]) -> None:
        """What has arrived of the one sequence: each text becomes a delta."""
        for _, event in events:
            if text := event if isinstance(event, str) else event.text:
                self._opened().text(text)
            if isinstance(event, Ended):
                self._finish = event.finish

    def _opened(self) -> MessageOutput:
        if self._output is None:
            if self.body.status == bodies.QUEUED:
                self._begin()
            self._output = MessageOutput(0, self._emit)
        return self._output

    def current(self) -> ResponseBody:
        """The response with its output so far."""
        if self._output is None or self.body.status not in bodies.UNFINISHED:
            return self.body
        return msgspec.structs.replace(self.body, output=[self._output.so_far()])

    def conclude(self, usage: ResponseUsage, now: float | None = None) -> None:
        """Every token has been taken."""
        body, cut = self.body, self._finish == FINISH_LENGTH
        body.output = [self._opened().close(INCOMPLETE if cut else COMPLETED)]
        body.usage = usage
        if cut:
            body.status, body.incomplete_details = bodies.INCOMPLETE, IncompleteDetails("max_output_tokens")
        else:
            body.status, body.completed_at = bodies.COMPLETED, int(time.time() if now is None else now)
        self._end()

    def fail(self, problem: Problem) -> None:
        """It was cancelled, or cannot be answered. What was said stays in the output."""
        body = self.body
        body.output = [] if self._output is None else [self._output.so_far(INCOMPLETE)]
        if problem.code == CANCELLED_CODE:
            body.status = bodies.CANCELLED
        else:
            body.status, body.error = bodies.FAILED, Failure(problem.code, problem.message)
        self._end()

    def repeat(self, final: ResponseBody) -> None:
        """The events of a response that has ended, when those of its making are gone: the text of an item is one delta."""
        for index, item in enumerate(final.output):
            self._output = MessageOutput(index, self._emit, item.id)
            for part in item.content:
                if part.text:
                    self._output.text(part.text)
            if final.status in (bodies.COMPLETED, bodies.INCOMPLETE):
                self._output.close(item.status)
        self.body = final
        self._end()

    def _end(self) -> None:
        self._emit(self._last)

    def _last(self, number: int) -> Event:
        if self.body.status == bodies.COMPLETED:
            return ResponseCompleted(number, self.body)
        if self.body.status == bodies.INCOMPLETE:
            return ResponseIncomplete(number, self.body)
        if self.body.status == bodies.FAILED:
            return ResponseFailed(number, self.body)
        return StreamError(number, CANCELLED_CODE, "The response was cancelled.")


def replay(final: ResponseBody, sink: Callable[[Event], None]) -> None:
    """All events of a response that has ended, from `final` alone."""
    begun = msgspec.structs.replace(final, status=bodies.QUEUED, output=[], usage=None, completed_at=None, error=None, incomplete_details=None)
    recorder = Recorder(begun, sink)
    recorder.accept()
    recorder.repeat(final)
