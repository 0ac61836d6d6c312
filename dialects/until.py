"""Text up to a terminator."""


class Until:
    """`held`: the beginning of a terminator, perhaps."""

    def __init__(self, terminator: str) -> None:
        self._terminator = terminator
        self.held = ""
        self.found = False

    def feed(self, text: str, at: int) -> tuple[str, int]:
        """Text that is certain to be before the terminator, and the position behind what was taken of `text` from `at` on."""
        held, size = self.held, len(self._terminator)
        across = (held + text[at : at + size]).find(self._terminator) if held else -1
        self.held = ""
        if 0 <= across < len(held):
            self.found = True
            return held[:across], at + across + size - len(held)
        inside = text.find(self._terminator, at)
        if inside >= 0:
            self.found = True
            return held + text[at:inside], inside + size
        body = held + text[at:]
        keep = next((length for length in range(min(size - 1, len(body)), 0, -1) if self._terminator.startswith(body[-length:])), 0)
        self.held = body[len(body) - keep :]
        return body[: len(body) - keep], len(text)
