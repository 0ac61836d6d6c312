"""Mistral: `[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]`, and the newer `[TOOL_CALLS]f[ARGS]{...}` for each call."""

import re
from collections.abc import Collection

from dialects.events import Arguments, CallEnd, CallStart, Content, Event, Markup
from dialects.tool_parser import ToolParser
from dialects.values import Value, leap

CALLS, CALL_ID, ARGS, LIST, END, COMMA, BRACE = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[", "]", ",", "{"
MAX_HEAD = 512
"""Characters before the arguments: a name, perhaps an id, markers and spaces."""
_HEAD = re.compile(r"[A-Za-z0-9_.:\-\[\]\s]*")
_WHOLE_HEAD = re.compile(r"\s*([A-Za-z0-9_.:-]+)\s*(?:\[CALL_ID\]\s*[A-Za-z0-9_-]*\s*)?(?:\[ARGS\]\s*)?")


class MistralParser(ToolParser):
    """The list may lack its end, and the newer form its `[ARGS]`."""

    markers = (CALLS,)

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._raw = self._head = ""
        self._value = Value()

    def finish(self) -> list[Event]:
        out: list[Event] = []
        if self._raw:
            out.append(Content(self._raw + self._head))
        return out + super().finish()

    def _called(self, marker: str, raw: str) -> None:
        self._raw, self._head, self._step = raw, "", self._before_arguments

    def _before_arguments(self, text: str, at: int, out: list[Event]) -> int:
        if text[at] == LIST and not self._head.strip():
            self._begin_object(self._taken() + LIST)
            return at + 1
        end = min(len(text), at + MAX_HEAD - len(self._head))
        if not self._head.strip():  # a list may still begin behind spaces
            space = len(text[at:end]) - len(text[at:end].lstrip())
            end = at + space if space else end
        stop = leap(_HEAD, text, at, end)
        self._head += text[at:stop]
        if len(self._head) >= MAX_HEAD or stop < end:
            self._decide("" if len(self._head) >= MAX_HEAD else text[stop], out)
        return stop

    def _decide(self, character: str, out: list[Event]) -> None:
        """All that may come before the arguments is there, and what is next."""
        head = _WHOLE_HEAD.fullmatch(self._head)
        if character == BRACE and head is not None and head[1] in self._names:
            out += [Markup(self._taken()), CallStart(self._calls, head[1])]
            self._value, self._step = Value(), self._in_arguments
        else:
            out.append(Content(self._taken()))
            self._step = self._text

    def _taken(self) -> str:
        taken, self._raw, self._head = self._raw + self._head, "", ""
        return taken

    def _in_arguments(self, text: str, at: int, out: list[Event]) -> int:
        stop = self._value.feed(text, at, len(text))
        if stop > at:
            out.append(Arguments(self._calls, text[at:stop]))
        if self._value.whole:
            out.append(CallEnd(self._calls))
        if self._value.whole or self._value.broken:
            self._calls, self._step = self._calls + 1, self._text
        return stop

    def _object_over(self) -> None:
        self._expect(COMMA, END)

    def _closed(self, found: str, raw: str, out: list[Event]) -> None:
        out.append(Markup(raw))
        self._step = self._text
        if found == COMMA:
            self._begin_object("")
