"""Qwen3-Coder: `<tool_call><function=f><parameter=x>...</parameter></function></tool_call>`, whose arguments become JSON on their way."""

import json
import re
from collections.abc import Mapping
from typing import Any

from dialects.events import Arguments, CallEnd, CallStart, Content, Event, Markup
from dialects.parameter import Parameter
from dialects.parameter_type import is_text
from dialects.tool_parser import Step, ToolParser
from dialects.values import leap

OPENING, CLOSING, FUNCTION, FUNCTION_END = "<tool_call>", "</tool_call>", "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
MAX_NAME = 256
_NAME = re.compile(r"[^<>\n]*")


class CoderParser(ToolParser):
    """`tools`: name to the JSON Schema of its parameters. A parameter whose schema allows a text, or says nothing, is one; others are JSON as they
    stand, or a text if they are none. The outer markers may be missing."""

    markers = (OPENING, FUNCTION)

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(tools)
        self._tools = tools
        self._raw = self._name = ""
        self._tool: Mapping[str, Any] = {}
        self._parameter: Parameter | None = None
        self._begun = False
        self._comma = ""

    def finish(self) -> list[Event]:
        out: list[Event] = []
        if self._parameter is not None:
            rest, raw = self._parameter.cut_off()
            out += [Markup(raw)] if raw else []
            self._make(rest, out)
        elif self._name:
            out.append(Markup(self._name) if self._begun else Content(self._raw + self._name))
            self._raw = ""
        elif self._raw and self._expected is None:
            out.append(Content(self._raw))
        return out + super().finish()

    def _unfinished(self, raw: str, out: list[Event]) -> None:
        raw = self._raw + raw
        if raw:
            out.append(Content(raw) if self._raw or not (self._begun or self._calls) else Markup(raw))

    def _called(self, marker: str, raw: str) -> None:
        self._raw = raw
        if marker == FUNCTION:
            self._read_name(self._in_function_name)
        else:
            self._expect(FUNCTION)

    def _closed(self, found: str, raw: str, out: list[Event]) -> None:
        if found == FUNCTION:
            self._raw += raw
            self._read_name(self._in_function_name)
            return
        out.append(Markup(raw))
        if found == PARAMETER:
            self._read_name(self._in_parameter_name)
        elif found == FUNCTION_END:
            self._make("}", out)
            out.append(CallEnd(self._calls))
            self._break_off()
            self._expect(CLOSING)
        else:
            self._step = self._text

    def _given_up(self, raw: str, out: list[Event]) -> None:
        if self._raw:
            out.append(Content(self._raw))
            self._raw = ""
        self._break_off()
        super()._given_up(raw, out)

    def _break_off(self) -> None:
        """The call that has begun, if any, is over."""
        self._calls += self._begun
        self._begun = False

    def _make(self, text: str, out: list[Event]) -> None:
        if text:
            out.append(Arguments(self._calls, text, verbatim=False))

    def _read_name(self, step: Step) -> None:
        self._name, self._step = "", step

    def _take_name(self, text: str, at: int) -> tuple[bool | None, int]:
        """Whether a name has come, once that is certain, and the position behind it and its `>`."""
        stop = leap(_NAME, text, at, min(len(text), at + MAX_NAME - len(self._name)))
        self._name += text[at:stop]
        if len(self._name) >= MAX_NAME:
            return False, stop
        if stop == len(text):
            return None, stop
        return (True, stop + 1) if text[stop] == ">" else (False, stop)

    def _in_function_name(self, text: str, at: int, out: list[Event]) -> int:
        named, stop = self._take_name(text, at)
        if named is None:
            return stop
        name, raw = self._name, self._raw + self._name + ">" * named
        self._raw = self._name = ""
        if not named or name not in self._tools:
            out.append(Content(raw))
            self._step = self._text
            return stop
        out += [Markup(raw), CallStart(self._calls, name)]
        self._tool, self._begun, self._comma = self._tools[name], True, ""
        self._make("{", out)
        self._expect(PARAMETER, FUNCTION_END)
        return stop

    def _in_parameter_name(self, text: str, at: int, out: list[Event]) -> int:
        named, stop = self._take_name(text, at)
        if named is None:
            return stop
        name, self._name = self._name, ""
        if not named:
            self._given_up("", out)
            out.append(Content(name))
            return stop
        out.append(Markup(name + ">"))
        self._make(f"{self._comma}{json.dumps(name, ensure_ascii=False)}: ", out)
        self._comma = ", "
        self._parameter, self._step = Parameter(PARAMETER_END, is_text(self._tool, name)), self._in_parameter
        return stop

    def _in_parameter(self, text: str, at: int, out: list[Event]) -> int:
        if self._parameter is None:
            raise RuntimeError("there is no parameter")
        made, raw, stop = self._parameter.feed(text, at)
        if raw:
            out.append(Markup(raw))
        self._make(made, out)
        if self._parameter.whole:
            self._parameter = None
            self._expect(PARAMETER, FUNCTION_END)
        return stop
