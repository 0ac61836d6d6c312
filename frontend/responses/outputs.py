"""Items of an answer while they grow, and the events that say so: a message, a reasoning, a call of a function."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec

from frontend.responses import events
from frontend.responses.events import ContentPartAdded, ContentPartDone, Event, OutputItemAdded, OutputItemDone
from frontend.responses.items import (
    ASSISTANT,
    CALL,
    MESSAGE,
    REASONING,
    FunctionCall,
    Message,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Score,
    new_id,
)
from frontend.responses.status import IN_PROGRESS

Emit = Callable[[Callable[[int], Event]], None]
"""Takes what makes an event of its number."""


class Output(ABC):
    """An item: opened when it is made, at the place `index` of the output. Its events are emitted; `item` is it as it began."""

    def __init__(self, item: OutputItem, index: int, emit: Emit) -> None:
        self._texts: list[str] = []
        self._item = item
        self._index = index
        self._emit = emit
        emit(lambda number: OutputItemAdded(number, index, item))

    @property
    def _whole(self) -> str:
        return "".join(self._texts)

    def text(self, text: str, scores: Sequence[Score] = ()) -> None:
        """More of its text. `scores` of its tokens, where they were asked for."""
        self._texts.append(text)
        self._emit(lambda number: self._delta(number, text, list(scores)))

    def close(self, status: str) -> OutputItem:
        item = self.so_far(status)
        self._finish()
        self._emit(lambda number: OutputItemDone(number, self._index, item))
        return item

    @abstractmethod
    def so_far(self, status: str = IN_PROGRESS) -> OutputItem:
        """The item with its text until now."""

    @abstractmethod
    def _delta(self, number: int, text: str, scores: list[Score]) -> Event: ...

    @abstractmethod
    def _finish(self) -> None:
        """The events that have its whole text."""


class MessageOutput(Output):
    """What the model answers, in one part."""

    def __init__(self, index: int, emit: Emit, name: str | None = None) -> None:
        self._message = Message(name or new_id(MESSAGE), IN_PROGRESS, ASSISTANT, [])
        self._scores: list[Score] = []
        super().__init__(self._message, index, emit)
        self._where = self._message.id, index, 0
        emit(lambda number: ContentPartAdded(number, *self._where, OutputText("")))

    def text(self, text: str, scores: Sequence[Score] = ()) -> None:
        self._scores += scores
        super().text(text, scores)

    def so_far(self, status: str = IN_PROGRESS) -> Message:
        return msgspec.structs.replace(self._message, status=status, content=[OutputText(self._whole, logprobs=list(self._scores))])

    def _delta(self, number: int, text: str, scores: list[Score]) -> Event:
        return events.OutputTextDelta(number, *self._where, text, scores)

    def _finish(self) -> None:
        part = OutputText(self._whole, logprobs=self._scores)
        self._emit(lambda number: events.OutputTextDone(number, *self._where, part.text, part.logprobs))
        self._emit(lambda number: ContentPartDone(number, *self._where, part))


class ReasoningOutput(Output):
    """What it thinks before."""

    def __init__(self, index: int, emit: Emit, name: str | None = None) -> None:
        self._reasoning = ReasoningItem(name or new_id(REASONING), IN_PROGRESS, [])
        super().__init__(self._reasoning, index, emit)
        self._where = self._reasoning.id, index, 0
        emit(lambda number: ContentPartAdded(number, *self._where, ReasoningText("")))

    def so_far(self, status: str = IN_PROGRESS) -> ReasoningItem:
        return msgspec.structs.replace(self._reasoning, status=status, content=[ReasoningText(self._whole)])

    def _delta(self, number: int, text: str, scores: list[Score]) -> Event:
        return events.ReasoningTextDelta(number, *self._where, text)

    def _finish(self) -> None:
        part = ReasoningText(self._whole)
        self._emit(lambda number: events.ReasoningTextDone(number, *self._where, part.text))
        self._emit(lambda number: ContentPartDone(number, *self._where, part))


class CallOutput(Output):
    """A call; its text is that of the arguments."""

    def __init__(self, index: int, emit: Emit, function: str, call_id: str, name: str | None = None) -> None:
        self._call = FunctionCall(name or new_id(CALL), IN_PROGRESS, call_id, function, "")
        super().__init__(self._call, index, emit)
        self._where = self._call.id, index

    def so_far(self, status: str = IN_PROGRESS) -> FunctionCall:
        return msgspec.structs.replace(self._call, status=status, arguments=self._whole)

    def _delta(self, number: int, text: str, scores: list[Score]) -> Event:
        return events.FunctionCallArgumentsDelta(number, *self._where, text)

    def _finish(self) -> None:
        arguments = self._whole
        self._emit(lambda number: events.FunctionCallArgumentsDone(number, *self._where, self._call.name, arguments))


def again(item: OutputItem, index: int, emit: Emit) -> Output:
    """One that has been before, from its beginning, with its text in one piece."""
    made: Output
    if isinstance(item, FunctionCall):
        made, texts = CallOutput(index, emit, item.name, item.call_id, item.id), [(item.arguments, list[Score]())]
    elif isinstance(item, ReasoningItem):
        made, texts = ReasoningOutput(index, emit, item.id), [(part.text, []) for part in item.content]
    else:
        made = MessageOutput(index, emit, item.id)
        texts = [(part.text, part.logprobs if isinstance(part, OutputText) else []) for part in item.content]
    for text, scores in texts:
        if text:
            made.text(text, scores)
    return made
