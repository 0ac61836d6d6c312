"""A tool call written as a JSON object: `{"name": "f", "arguments": {...}}`, in any order and with other members."""

import json
from collections.abc import Callable, Collection

from dialects.events import Arguments, CallEnd, CallStart, Content, Event, Markup
from dialects.values import SPACE, WHITESPACE, Value, leap

MAX_HELD = 64 << 10
"""Characters of a call that are held back at most until it is certain that it is one."""
MAX_NAME = 256
NAME, ARGUMENTS = "name", ("arguments", "parameters")
RUNNING, WHOLE, BAD = range(3)


class CallObject:
    """Nothing is said before the name is known and the arguments have begun; then they are streamed. `names`: of the tools there are. `raw`: the
    text before the object, which belongs to it.

    `status` BAD: from the character on that is next it is no call. What was held back of it has been given as content then.
    """

    def __init__(self, names: Collection[str], index: int, raw: str) -> None:
        self._names = names
        self._index = index
        self._held = [raw]
        self._size = len(raw)
        self._place: Callable[[str, int, list[Event]], int] = self._open
        self._value: Value | None = None
        self._text: list[str] | None = None
        self._key = ""
        self._name: str | None = None
        self._arguments = (-1, -1)
        self.status = RUNNING
        self.started = False

    def feed(self, text: str, at: int, out: list[Event]) -> int:
        """Behind what was taken of `text` from `at` on."""
        end = len(text) if self.started else min(len(text), at + MAX_HELD - self._size)
        while at < end and self.status == RUNNING:
            if self._value is None:
                stop = leap(SPACE, text, at, end) if text[at] in WHITESPACE else self._place(text, at, out)
                self._say(text[at:stop], False, out)
            else:
                stop = self._inside(self._value, text, at, end, out)
            at = stop
            if self.started:
                end = len(text)
        if not self.started and self._size >= MAX_HELD:
            self.status = BAD
        if self.status == BAD:
            self.finish(out)
        return at

    def finish(self, out: list[Event]) -> None:
        """Nothing more comes of it."""
        if not self.started:
            out.append(Content("".join(self._held)))
        self._held = []

    def _say(self, text: str, argument: bool, out: list[Event]) -> None:
        if not text:
            return
        if self.started:
            out.append(Arguments(self._index, text) if argument else Markup(text))
        else:
            self._held.append(text)
            self._size += len(text)

    def _inside(self, value: Value, text: str, at: int, end: int, out: list[Event]) -> int:
        stop = value.feed(text, at, end)
        argument = self._place == self._after and self._key in ARGUMENTS
        self._say(text[at:stop], argument, out)
        if self._text is not None:
            self._text.append(text[at:stop])
            if sum(map(len, self._text)) > MAX_NAME:
                self.status = BAD
        if value.broken:
            self.status = BAD
        elif value.whole:
            self._value = None
            self._read(argument, out)
        return stop

    def _read(self, argument: bool, out: list[Event]) -> None:
        """A value is whole."""
        if argument:
            self._arguments = self._arguments[0], self._size
            if self.started:
                out.append(CallEnd(self._index))
        elif self._text is not None:
            read, self._text = _string("".join(self._text)), None
            if read is None or (self._place == self._after and read not in self._names):
                self.status = BAD
            elif self._place == self._after:
                self._name = read
                self._start_late(out)
            else:
                self._key = read

    def _begin(self, collect: bool) -> None:
        self._value, self._text = Value(), [] if collect else None

    def _expect(self, text: str, at: int, character: str) -> int:
        if text[at] == character:
            return at + 1
        self.status = BAD
        return at

    def _open(self, text: str, at: int, out: list[Event]) -> int:
        self._place = self._next
        return self._expect(text, at, "{")

    def _next(self, text: str, at: int, out: list[Event]) -> int:
        self._place = self._colon
        if text[at] != '"':
            self.status = BAD
        else:
            self._begin(collect=True)
        return at

    def _colon(self, text: str, at: int, out: list[Event]) -> int:
        self._place = self._member
        return self._expect(text, at, ":")

    def _member(self, text: str, at: int, out: list[Event]) -> int:
        self._place = self._after
        wanted = '"' if self._key == NAME else "{" if self._key in ARGUMENTS else text[at]
        again = (self._key == NAME and self._name is not None) or (self._key in ARGUMENTS and self._arguments[0] >= 0)
        if text[at] != wanted or again:
            self.status = BAD
            return at
        self._begin(collect=self._key == NAME)
        if self._key in ARGUMENTS:
            self._arguments = self._size, -1
            if self._name is not None:
                self._start(out, self._held, [])
        return at

    def _after(self, text: str, at: int, out: list[Event]) -> int:
        if text[at] == ",":
            self._place = self._next
            return at + 1
        if text[at] != "}" or self._name is None:
            self.status = BAD
            return at
        self.status = WHOLE
        if not self.started:
            self._start(out, self._held, [Arguments(self._index, "{}", verbatim=False), CallEnd(self._index)])
        return at + 1

    def _start(self, out: list[Event], before: list[str], after: list[Event]) -> None:
        out += [Markup("".join(before)), CallStart(self._index, self._name or ""), *after]
        self._held, self.started = [], True

    def _start_late(self, out: list[Event]) -> None:
        """The name came behind the arguments, which were held back."""
        begin, end = self._arguments
        if begin < 0:
            return
        text = "".join(self._held)
        self._start(out, [text[:begin]], [Arguments(self._index, text[begin:end]), CallEnd(self._index), Markup(text[end:])])


def _string(text: str) -> str | None:
    """What a JSON string with its quotes says; None when it is none."""
    try:
        read = json.loads(text)
    except ValueError:
        return None
    return read if isinstance(read, str) else None
