"""The value of one parameter that is written between markers, on its way to JSON."""

import json

from dialects.until import Until

MAX_VALUE = 64 << 10
"""Characters of a value that is no text are held back at most; a longer one is taken for a text."""


class Parameter:
    """`text`: it is a text, whose characters are passed on as they come. One line break behind the opening and one before the closing marker are not
    part of it."""

    def __init__(self, terminator: str, text: bool) -> None:
        self._until = Until(terminator)
        self._text = text
        self._fresh = True
        self._line = ""
        self._held: list[str] = []
        self._size = 0
        self.whole = False

    def feed(self, text: str, at: int) -> tuple[str, str, int]:
        """JSON that is certain, the text that it and what stands around it were, and the position behind what was taken of `text` from `at` on."""
        held = self._until.held
        body, stop = self._until.feed(text, at)
        raw = (held + text[at:stop]).removesuffix(self._until.held)
        self.whole = self._until.found
        opened = '"' if self._text and self._fresh and (body or self.whole) else ""
        if body and self._fresh:
            body, self._fresh = body.removeprefix("\n"), False
        body = self._line + body
        self._line = "\n" if body.endswith("\n") and not self.whole else ""
        return opened + self._add(body.removesuffix("\n") if self.whole else body.removesuffix(self._line)), raw, stop

    def _add(self, body: str) -> str:
        if self._text:
            return _escaped(body) + '"' * self.whole
        self._held.append(body)
        self._size += len(body)
        if self._size > MAX_VALUE:
            self._text = True
            return '"' + _escaped("".join(self._held)) + '"' * self.whole
        return _json("".join(self._held)) if self.whole else ""

    def cut_off(self) -> tuple[str, str]:
        """At the end of the text: JSON of what was held back, and the part of the text that has not been taken."""
        held = self._until.held
        if self._text:
            return ('"' if self._fresh else "") + _escaped(self._line + held), held
        return "".join(self._held) + self._line + held, held


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _json(text: str) -> str:
    """`text` where it is JSON, Python's names of constants included; else a JSON string of it."""
    word = text.strip()
    word = {"True": "true", "False": "false", "None": "null"}.get(word, word)
    try:
        json.loads(word, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    return word


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
