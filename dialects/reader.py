"""One answer's text on its way to events: reasoning first, then tool calls in what is left of it."""

from dialects.events import CallEnd, CallStart, Content, Event
from dialects.reasoning import ReasoningParser
from dialects.tool_parser import ToolParser


class Reader:
    """Either parser may be missing. `whole_calls`: how many calls are whole; `calls`: how many have begun."""

    def __init__(self, reasoning: ReasoningParser | None, tools: ToolParser | None) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self.calls = 0
        self.whole_calls = 0

    @property
    def reasons(self) -> bool:
        """The reasoning is not over."""
        return self._reasoning is not None and self._reasoning.inside

    @property
    def undecided(self) -> bool:
        """It is not certain yet whether the answer begins with reasoning."""
        return self._reasoning is not None and self._reasoning.undecided

    def push(self, text: str) -> list[Event]:
        """What `text` makes certain."""
        if self._reasoning is None:
            return self._called([Content(text)] if text else [])
        return self._called(self._reasoning.push(text))

    def finish(self) -> list[Event]:
        """The end of the text."""
        found = self._called([] if self._reasoning is None else self._reasoning.finish())
        rest = [] if self._tools is None else self._tools.finish()
        self._count(rest)
        return found + rest

    def _called(self, events: list[Event]) -> list[Event]:
        tools = self._tools
        if tools is None:
            return events
        found: list[Event] = []
        for event in events:
            found += tools.push(event.text) if isinstance(event, Content) else [event]
        self._count(found)
        return found

    def _count(self, events: list[Event]) -> None:
        self.calls += sum(isinstance(event, CallStart) for event in events)
        self.whole_calls += sum(isinstance(event, CallEnd) for event in events)
