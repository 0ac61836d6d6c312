"""Where a JSON value ends, found by its brackets and quotes as it arrives. What stands between them is not checked: it is the model's."""

import re

MAX_DEPTH = 128
WHITESPACE = " \t\r\n"
SPACE = re.compile(r"[ \t\r\n]*")
_QUOTED = re.compile(r'[^"\\]*')
_NESTED = re.compile(r'[^"{}\[\]]*')
_SCALAR = re.compile(r"[^ \t\r\n,\]}]*")
_CLOSER = {"{": "}", "[": "]"}


def leap(pattern: "re.Pattern[str]", text: str, at: int, end: int) -> int:
    """Behind what `pattern`, which matches anything or nothing, takes of `text` from `at` on."""
    found = pattern.match(text, at, end)
    return at if found is None else found.end()


class Value:
    """One value, without whitespace before it. `whole` once it has ended, `broken` once its brackets do not fit or are too deep."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._quoted = self._escaped = self._scalar = False
        self.whole = self.broken = False

    def feed(self, text: str, at: int, end: int) -> int:
        """Behind what of `text`, from `at` to `end`, belongs to the value."""
        while at < end and not (self.whole or self.broken):
            if self._escaped:
                self._escaped = False
                at += 1
            elif self._quoted:
                at = self._inside_quotes(text, at, end)
            elif self._scalar:
                at = leap(_SCALAR, text, at, end)
                self.whole = at < end
            else:
                at = self._outside_quotes(text, at, end)
        return at

    def _inside_quotes(self, text: str, at: int, end: int) -> int:
        at = leap(_QUOTED, text, at, end)
        if at == end:
            return at
        self._escaped = text[at] == "\\"
        self._quoted = self._escaped
        self.whole = not (self._quoted or self._closers)
        return at + 1

    def _outside_quotes(self, text: str, at: int, end: int) -> int:
        if self._closers:
            at = leap(_NESTED, text, at, end)
            if at == end:
                return at
        character = text[at]
        if character == '"':
            self._quoted = True
        elif character in _CLOSER:
            self._closers.append(_CLOSER[character])
            self.broken = len(self._closers) > MAX_DEPTH
        elif not self._closers:
            self._scalar = character not in ",:]}"
            self.broken = not self._scalar
            return at
        elif self._closers.pop() == character:
            self.whole = not self._closers
        else:
            self.broken = True
            return at
        return at + 1
