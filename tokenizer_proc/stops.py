"""Stop strings found in text that arrives in pieces, whatever the pieces."""

from dataclasses import dataclass

MAX_STOP_CHARACTERS = 4096


class _Pattern:
    """One stop string as a Knuth-Morris-Pratt automaton: `length` characters of it end the text so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.length = 0
        self._failure = [0] * len(text)
        matched = 0
        for i in range(1, len(text)):
            while matched and text[i] != text[matched]:
                matched = self._failure[matched - 1]
            matched += text[i] == text[matched]
            self._failure[i] = matched

    def feed(self, character: str) -> bool:
        """True when the string ends here."""
        while self.length and self.text[self.length] != character:
            self.length = self._failure[self.length - 1]
        self.length += self.text[self.length] == character
        return self.length == len(self.text)

    def go_on(self) -> None:
        """After its end, as if it had not been one: its last characters may begin the next."""
        self.length = self._failure[-1]


@dataclass(frozen=True)
class _Match:
    start: int
    text: str


class StopMatcher:
    """Lets text through up to the earliest stop string. Text that may be the beginning of one is held back, nothing else.

    The match with the earliest first character wins (the shorter of two at one place), however the text is cut into pieces: a match is
    kept waiting while a string that began before it may still be completed. `matched` is the stop string once there is one.
    """

    def __init__(self, strings: list[str], include: bool = False) -> None:
        self._patterns = [_Pattern(text) for text in dict.fromkeys(strings)]
        self.include = include
        self._held = ""
        self._best: _Match | None = None
        self.matched: str | None = None

    def push(self, text: str, counts: bool = True) -> str:
        """Text that is certain to be outside every stop string. After a match: nothing. Strings that end in text that does not count are no match."""
        if self.matched is not None:
            return ""
        if not self._patterns:
            return text
        position = len(self._held)
        self._held += text
        for character in text:
            position += 1
            self._feed(character, position, counts)
            if self._best is not None and self._first_open(position) >= self._best.start:
                return self._stop(self._best)
        return self._release(min(self._first_open(position), position if self._best is None else self._best.start))

    def flush(self) -> str:
        """The end of the sequence: a waiting match counts, a mere beginning is text."""
        if self.matched is None and self._best is not None:
            return self._stop(self._best)
        return self._release(len(self._held))

    def _feed(self, character: str, position: int, counts: bool) -> None:
        for pattern in self._patterns:
            if pattern.feed(character):
                if not counts:
                    pattern.go_on()
                    continue
                start = position - pattern.length
                if self._best is None or start < self._best.start:
                    self._best = _Match(start, pattern.text)
                pattern.length = 0

    def _first_open(self, position: int) -> int:
        """Where the longest unfinished beginning of a stop string starts."""
        return position - max(pattern.length for pattern in self._patterns)

    def _stop(self, match: _Match) -> str:
        self.matched = match.text
        end = match.start + len(match.text) if self.include else match.start
        text, self._held = self._held[:end], ""
        return text

    def _release(self, count: int) -> str:
        if self._best is not None:
            self._best = _Match(self._best.start - count, self._best.text)
        text, self._held = self._held[:count], self._held[count:]
        return text
