"""Hermes, Qwen 2.5 and Qwen 3: `<tool_call>{"name": "f", "arguments": {...}}</tool_call>`, one after another."""

from dialects.events import Event, Markup
from dialects.tool_parser import ToolParser

OPENING, CLOSING = "<tool_call>", "</tool_call>"


class HermesParser(ToolParser):
    """The closing marker may be missing."""

    markers = (OPENING,)

    def _called(self, marker: str, raw: str) -> None:
        self._begin_object(raw)

    def _object_over(self) -> None:
        self._expect(CLOSING)

    def _closed(self, found: str, raw: str, out: list[Event]) -> None:
        out.append(Markup(raw))
        self._step = self._text
