"""Reasoning before an answer: what stands between two markers at the very beginning of a text."""

from collections.abc import Callable

from dialects.events import Content, Event, Markup, Reasoning
from dialects.prose import MAX_SPACE, Prose


class ReasoningParser:
    """`opening` and `closing`: the markers. `inside`: the prompt has opened the reasoning, so that the text begins within (it may repeat the marker).

    Whitespace next to a marker belongs to it. A text that does not begin with the opening marker is content as a whole. `inside` is true until the
    reasoning is over.
    """

    def __init__(self, opening: str, closing: str, inside: bool) -> None:
        self._opening = opening
        self._prose = Prose((closing,), Reasoning)
        self.inside = inside
        self._held = ""
        self._step: Callable[[str, int, list[Event]], int] = self._lead

    @property
    def undecided(self) -> bool:
        """The opening marker may still come."""
        return self._step == self._lead

    def push(self, text: str) -> list[Event]:
        """What `text` makes certain."""
        out: list[Event] = []
        self._run(text, 0, out)
        return out

    def finish(self) -> list[Event]:
        """The end of the text."""
        out: list[Event] = []
        held, self._held = self._held, ""
        if self._step == self._trail:
            out += [Markup(held)] if held else []
        elif held:
            out.append(Reasoning(held) if self.inside else Content(held))
        self._prose.finish(out)
        return out

    def _run(self, text: str, at: int, out: list[Event]) -> None:
        while at < len(text):
            at = self._step(text, at, out)

    def _lead(self, text: str, at: int, out: list[Event]) -> int:
        """Whitespace and the opening marker, if they come."""
        old = self._held
        seen = old + text[at : at + MAX_SPACE + len(self._opening)]
        body = seen.lstrip()
        space = len(seen) - len(body)
        if space <= MAX_SPACE and body.startswith(self._opening):
            cut = space + len(self._opening)
            out.append(Markup(seen[:cut]))
            self._held, self.inside, self._step = "", True, self._opened
            return at + cut - len(old)
        if space <= MAX_SPACE and self._opening.startswith(body):
            self._held = seen
            return at + len(seen) - len(old)
        self._held = ""
        self._step = self._opened if self.inside else self._answer
        self._run(old, 0, out)
        return at

    def _opened(self, text: str, at: int, out: list[Event]) -> int:
        return self._space(text, at, out, self._think)

    def _trail(self, text: str, at: int, out: list[Event]) -> int:
        return self._space(text, at, out, self._answer)

    def _space(self, text: str, at: int, out: list[Event], following: Callable[[str, int, list[Event]], int]) -> int:
        """Whitespace behind a marker; more of it than belongs to a marker is part of what follows."""
        new = text[at : at + MAX_SPACE + 1]
        space = len(new) - len(new.lstrip())
        held = self._held + new[:space]
        if len(held) <= MAX_SPACE and space == len(new):
            self._held = held
            return at + space
        self._held, self._step = "", following
        if len(held) > MAX_SPACE:
            self._run(held, 0, out)
        elif held:
            out.append(Markup(held))
        return at + space

    def _think(self, text: str, at: int, out: list[Event]) -> int:
        at = self._prose.feed(text, at, out)
        if self._prose.marker:
            out.append(Markup(self._prose.raw))
            self.inside, self._step = False, self._trail
        return at

    def _answer(self, text: str, at: int, out: list[Event]) -> int:
        out.append(Content(text[at:] if at else text))
        return len(text)
