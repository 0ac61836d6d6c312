"""How the answers of one request are read: their text on its way to content, reasoning and tool calls."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from dialects.events import Arguments, CallEnd, Content, Event, Reasoning
from dialects.registry import ReasoningDialect, ToolDialect, Tools, make_reader
from messages.text import FINISH_STOP, Ended, TextDelta

TOOL_CALLS = "tool_calls"
MAX_CLOSINGS = 3
"""A reasoning that goes on although it was closed so often is left alone."""


@dataclass(frozen=True)
class Reading:
    """`tools`: the dialect of calls, None where none are offered. `single`: the answer ends with its first call. `budget`: after so many tokens of
    reasoning it is closed."""

    tools: ToolDialect | None = None
    offered: Tools = field(default_factory=dict)
    reasoning: ReasoningDialect | None = None
    single: bool = False
    budget: int | None = None

    @property
    def shown(self) -> list[str]:
        """Special tokens that must be seen."""
        return [*(self.tools.markers if self.tools else ()), *(self.reasoning.markers if self.reasoning else ())]

    @property
    def opening(self) -> str:
        """With what a prompt ends that has begun the reasoning."""
        return self.reasoning.opening if self.reasoning else ""

    @property
    def closing(self) -> str:
        """What ends a reasoning that has used up its budget."""
        return f"\n{self.reasoning.closing}\n\n" if self.reasoning else ""


class Said(NamedTuple):
    """Part of an answer that is read: what its text says, and the message with all else there was, if there was more. `finish`: the finish reason."""

    events: list[Event]
    message: TextDelta | Ended | None = None
    finish: str | None = None

    @property
    def text(self) -> str:
        """Of the answer itself."""
        return "".join([event.text for event in self.events if isinstance(event, Content)])


Came = str | TextDelta | Ended | Said
"""What came for a sequence: text alone, a message that says more, or what has been read in it."""


def said_in(came: Came) -> list[Event]:
    """What it says, read or not."""
    if isinstance(came, Said):
        return came.events
    text = came if isinstance(came, str) else came.text
    return [Content(text)] if text else []


def ending_in(came: Came) -> tuple[str | None, str | int | None] | None:
    """The finish reason and what was found, if this is the end."""
    message = came.message if isinstance(came, Said) else came
    if not isinstance(message, Ended):
        return None
    return came.finish if isinstance(came, Said) else message.finish, message.stop_reason


def condensed(events: Iterable[Event]) -> list[Event]:
    """Neighbours that grow the same block are one."""
    groups: list[list[Event]] = []
    for event in events:
        last = groups[-1][0] if groups else None
        if type(event) is type(last) and isinstance(event, Content | Reasoning | Arguments) and _verbatim(event) == _verbatim(last):
            groups[-1].append(event)
        else:
            groups.append([event])
    return [_joined(group) for group in groups]


def _verbatim(event: Event | None) -> bool:
    return not isinstance(event, Arguments) or event.verbatim


def _joined(group: list[Event]) -> Event:
    first = group[0]
    if len(group) == 1 or not isinstance(first, Content | Reasoning | Arguments):
        return first
    text = "".join([event.text for event in group if isinstance(event, Content | Reasoning | Arguments)])
    return msgspec.structs.replace(first, text=text)


class Listener:
    """Reads one sequence. `reasoning_tokens`: those that came while the reasoning was not over."""

    def __init__(self, reading: Reading, inside: bool) -> None:
        self._reading = reading
        self._reader = make_reader(reading.tools, reading.offered, reading.reasoning, inside)
        self._closings = 0
        self._undecided = 0
        self.reasoning_tokens = 0

    @property
    def over(self) -> bool:
        """The one call that was wanted is whole."""
        return self._reading.single and self._reader.whole_calls > 0

    @property
    def overthinks(self) -> bool:
        """The reasoning is to be closed."""
        budget = self._reading.budget
        return budget is not None and self.reasoning_tokens >= budget and self._reader.reasons and self._closings < MAX_CLOSINGS

    def close(self) -> str:
        """The text that is to go on from here."""
        self._closings += 1
        return self._reading.closing

    def hear(self, text: str, tokens: int) -> list[Event]:
        """What `text`, which came with so many tokens, makes certain."""
        before = self._reader.reasons
        events = self._reader.push(text)
        self._undecided += tokens
        reasons = before or self._reader.reasons
        self.reasoning_tokens += self._undecided * reasons
        if reasons or not self._reader.undecided:
            self._undecided = 0
        return self._cut(events)

    def end(self, message: Ended) -> Said:
        """The last message, its text included."""
        events = self.hear(message.text, message.tokens)
        if not self.over:
            events += self._reader.finish()
        return Said(self._cut(events), message, self._finish(message))

    def _finish(self, message: Ended) -> str | None:
        return TOOL_CALLS if message.finish == FINISH_STOP and self._reader.whole_calls else message.finish

    def _cut(self, events: list[Event]) -> list[Event]:
        """Nothing follows the one call that is wanted."""
        if not self.over:
            return events
        ends = (number for number, event in enumerate(events) if isinstance(event, CallEnd))
        return events[: next(ends, -1) + 1]
