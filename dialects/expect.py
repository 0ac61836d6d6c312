"""A few characters that must come next."""

from dialects.prose import MAX_SPACE


class Expect:
    """Whitespace, and then one of `options`, none of which begins another. `found`: the one that came; `failed`: none did. `raw`: what was taken."""

    def __init__(self, *options: str) -> None:
        self._options = options
        self._begun = ""
        self.raw = ""
        self.found = ""
        self.failed = False

    def feed(self, text: str, at: int) -> int:
        """Behind what was taken of `text` from `at` on. A character that does not fit is not."""
        begin = at
        while at < len(text) and not (self.found or self.failed):
            character = text[at]
            if not self._begun and character.isspace():
                self.failed = len(self.raw) + at - begin >= MAX_SPACE
            elif any(option.startswith(self._begun + character) for option in self._options):
                self._begun += character
                self.found = self._begun if self._begun in self._options else ""
            else:
                self.failed = True
            at += not self.failed
        self.raw += text[begin:at]
        return at
