"""Log probabilities on their way to the texts that their tokens make."""

from collections import deque
from collections.abc import Iterable

import msgspec

from frontend import logprobs
from frontend.responses.items import Score
from messages.text import TokenLogprob

_encode = msgspec.json.Encoder().encode


class Scores:
    """Tokens come with the text that they make or before it: half a character, and what may be the beginning of a marker, are held back. Both are
    counted in characters of what the model wrote. Tokens without a text, and those behind the end of the text, are of no part."""

    def __init__(self) -> None:
        self._offsets = logprobs.Offsets()
        self._at = 0
        self._waiting: deque[tuple[int, int, TokenLogprob]] = deque()

    def hear(self, tokens: Iterable[TokenLogprob]) -> None:
        for token in tokens:
            if not token.hidden:
                begin = self._offsets.next(token.piece)
                self._waiting.append((begin, self._offsets.next(b""), token))

    def taken(self, text: str) -> list[Score]:
        """Those of the next text, which is part of an answer. One that reaches into it from what was no part, or on from its end, is among them."""
        self._at += len(text)
        found: list[TokenLogprob] = []
        while self._waiting and self._waiting[0][0] < self._at:
            found.append(self._waiting.popleft()[2])
        return [msgspec.Raw(_encode(entry)) for entry in logprobs.chat(found).content] if found else []

    def passed(self, text: str) -> None:
        """The next text is no part of an answer."""
        self._at += len(text)
        while self._waiting and self._waiting[0][0] < self._at and self._waiting[0][1] <= self._at:
            self._waiting.popleft()
