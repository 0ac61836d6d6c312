"""Text outside of anything: lets it through up to the next of some markers, whatever the pieces in which it arrives."""

import re
from collections.abc import Callable

from dialects.events import Event

MAX_SPACE = 256
"""So much whitespace before or behind a marker belongs to it."""


class Prose:
    """`wrap` makes events of the text. Held back are whitespace, which belongs to a marker that follows, and the beginning of a marker.

    No marker begins with another one. `_spilt`: the whitespace at the end is too much to belong to a marker and has been let through.
    """

    def __init__(self, markers: tuple[str, ...], wrap: Callable[[str], Event]) -> None:
        self._markers = markers
        self._wrap = wrap
        self._pattern = re.compile("|".join(map(re.escape, sorted(markers, key=len, reverse=True))))
        self._longest = max(map(len, markers))
        self._held = ""
        self._spilt = False
        self.marker = ""
        self.raw = ""

    def feed(self, text: str, at: int, out: list[Event]) -> int:
        """Behind what was taken of `text` from `at` on: all of it, or up to the end of a `marker`, which is set then; `raw` is that with the
        whitespace before it."""
        self.marker = self.raw = ""
        held = self._held
        across = self._pattern.search(held + text[at : at + self._longest]) if held else None
        if across is not None and across.start() < len(held):
            body, end, self.marker = held[: across.start()], at + across.end() - len(held), across[0]
        elif (inside := self._pattern.search(text, at)) is not None:
            body, end, self.marker = held + text[at : inside.start()], inside.end(), inside[0]
        else:
            body, end = held + text[at:], len(text)
        self._let_through(body, out)
        return end

    def _let_through(self, body: str, out: list[Event]) -> None:
        partial = 0 if self.marker else self._partial(body)
        solid = body[: len(body) - partial]
        stripped = solid.rstrip()
        space = len(solid) - len(stripped)
        self._spilt = space > MAX_SPACE or (self._spilt and not stripped)
        cut = len(solid) if self._spilt else len(stripped)
        if cut:
            out.append(self._wrap(body[:cut]))
        self._held = body[cut:]
        if self.marker:
            self.raw, self._held, self._spilt = self._held + self.marker, "", False

    def _partial(self, text: str) -> int:
        """Characters at the end of `text` that may begin a marker."""
        longest = 0
        for marker in self._markers:
            for length in range(min(len(marker) - 1, len(text)), longest, -1):
                if text.endswith(marker[:length]):
                    longest = length
                    break
        return longest

    def finish(self, out: list[Event]) -> None:
        """The end of the text: what is held back is text."""
        if self._held:
            out.append(self._wrap(self._held))
            self._held = ""
