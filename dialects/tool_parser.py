"""What the parsers of tool calls share: steps over a text that arrives in pieces, and what becomes of a call that is none."""

from collections.abc import Callable, Collection

from dialects.call_object import BAD, RUNNING, CallObject
from dialects.events import Content, Event, Markup
from dialects.expect import Expect
from dialects.prose import Prose

Step = Callable[[str, int, list[Event]], int]


class ToolParser:
    """A text with tool calls. `names`: of the tools that were offered; what calls another one is no call.

    What turns out to be no call is content, whatever was held back of it, and is not looked at again: the next character is text. What follows a
    call that has begun and then breaks off is content as well.
    """

    markers: tuple[str, ...]
    """What begins a call within a text."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._calls = 0
        self._prose = Prose(self.markers, Content)
        self._object: CallObject | None = None
        self._expected: Expect | None = None
        self._step: Step = self._text

    def push(self, text: str) -> list[Event]:
        """What `text` makes certain."""
        out: list[Event] = []
        self._run(text, out)
        return out

    def finish(self) -> list[Event]:
        """The end of the text."""
        out: list[Event] = []
        if self._expected is not None:
            self._unfinished(self._expected.raw, out)
        elif self._object is not None:
            self._object.finish(out)
        self._prose.finish(out)
        return out

    def _run(self, text: str, out: list[Event]) -> None:
        at = 0
        while at < len(text):
            at = self._step(text, at, out)

    def _text(self, text: str, at: int, out: list[Event]) -> int:
        at = self._prose.feed(text, at, out)
        if self._prose.marker:
            self._called(self._prose.marker, self._prose.raw)
        return at

    def _called(self, marker: str, raw: str) -> None:
        """A marker has come, `raw` with the whitespace before it."""
        raise NotImplementedError

    def _closed(self, found: str, raw: str, out: list[Event]) -> None:
        """What was expected has come."""
        raise NotImplementedError

    def _unfinished(self, raw: str, out: list[Event]) -> None:
        """The text has ended in the middle of it; behind a call it would have been its end."""
        if raw:
            out.append(Markup(raw) if self._calls else Content(raw))

    def _given_up(self, raw: str, out: list[Event]) -> None:
        """It has not: `raw`, which may be empty, is text."""
        self._expected, self._step = None, self._text
        self._run(raw, out)

    def _begin_object(self, raw: str) -> None:
        self._object = CallObject(self._names, self._calls, raw)
        self._step = self._in_object

    def _in_object(self, text: str, at: int, out: list[Event]) -> int:
        called = self._object
        if called is None:
            raise RuntimeError("there is no call")
        at = called.feed(text, at, out)
        if called.status != RUNNING:
            self._object, self._step = None, self._text
            self._calls += called.started
            if called.status != BAD or called.started:
                self._object_over()
        return at

    def _object_over(self) -> None:
        """A call is whole, or as much of one as there is."""
        raise NotImplementedError

    def _expect(self, *options: str) -> None:
        self._expected, self._step = Expect(*options), self._expecting

    def _expecting(self, text: str, at: int, out: list[Event]) -> int:
        expected = self._expected
        if expected is None:
            raise RuntimeError("nothing is expected")
        at = expected.feed(text, at)
        if expected.failed:
            self._given_up(expected.raw, out)
        elif expected.found:
            self._expected = None
            self._closed(expected.found, expected.raw, out)
        return at
