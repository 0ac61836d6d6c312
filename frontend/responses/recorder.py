"""From what the engine says to the response object and its events: one state machine for streams, whole answers and background mode."""

import time
from collections.abc import Callable, Iterable
from typing import Any

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
Emit = Callable[..., None]


class MessageOutput:
    """The item that a text becomes: opened with its first piece. `index`: its place in the output."""

    def __init__(self, index: int, emit: Emit, name: str | None = None) -> None:
        self._emit = emit
        self._texts: list[str] = []
        self._item = Message(name or new_id(), IN_PROGRESS, ASSISTANT, [])
        self._where: dict[str, Any] = {"item_id": self._item.id, "output_index": index, "content_index": 0}
        self._index = index
        emit(OutputItemAdded, output_index=index, item=self._item)
        emit(ContentPartAdded, **self._where, part=OutputText(""))

    def text(self, text: str) -> None:
        self._texts.append(text)
        self._emit(OutputTextDelta, **self._where, delta=text)

    def so_far(self, status: str = IN_PROGRESS) -> Message:
        """The item with its text until now."""
        return msgspec.structs.replace(self._item, status=status, content=[OutputText("".join(self._texts))])

    def close(self, status: str) -> Message:
        item = self.so_far(status)
        part = item.content[0]
        self._emit(OutputTextDone, **self._where, text=part.text)
        self._emit(ContentPartDone, **self._where, part=part)
        self._emit(OutputItemDone, output_index=self._index, item=item)
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

    def _emit(self, kind: Callable[..., Event], **fields: Any) -> None:
        self._sink(kind(sequence_number=self._number, **fields))
        self._number += 1

    def accept(self) -> None:
        """The request is taken: in background mode it waits for its turn, else it is about to be answered."""
        self._emit(ResponseCreated, response=self._snapshot())
        if self.body.background:
            self._emit(ResponseQueued, response=self._snapshot())
        else:
            self._begin()

    def _begin(self) -> None:
        self.body.status = bodies.IN_PROGRESS
        self._emit(ResponseInProgress, response=self._snapshot())

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
        if self.body.status == bodies.COMPLETED:
            self._emit(ResponseCompleted, response=self.body)
        elif self.body.status == bodies.INCOMPLETE:
            self._emit(ResponseIncomplete, response=self.body)
        elif self.body.status == bodies.FAILED:
            self._emit(ResponseFailed, response=self.body)
        else:
            self._emit(StreamError, code=CANCELLED_CODE, message="The response was cancelled.")


def replay(final: ResponseBody, sink: Callable[[Event], None]) -> None:
    """All events of a response that has ended, from `final` alone."""
    begun = msgspec.structs.replace(final, status=bodies.QUEUED, output=[], usage=None, completed_at=None, error=None, incomplete_details=None)
    recorder = Recorder(begun, sink)
    recorder.accept()
    recorder.repeat(final)
