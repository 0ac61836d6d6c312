"""What comes too late from a tokenizer that has died, and what it leaves behind."""

from collections.abc import Mapping

from messages.admit import Admit
from scheduler.requests import Request


def keys_of(tokenizer: int, live: Mapping[int, Request]) -> list[int]:
    """Those of one tokenizer, by its number."""
    return [key for key, request in live.items() if request.tokenizer == tokenizer]


class Fence:
    """From which incarnation on each tokenizer is heard. Its sequences are always those of one incarnation, the newest that was heard of."""

    def __init__(self) -> None:
        self._first: dict[str, int] = {}

    def ended(self, tokenizer: str, incarnation: int) -> bool:
        """This incarnation is over, and those before; True when one of them may have sequences here."""
        first = self._first.get(tokenizer, 0)
        self._first[tokenizer] = max(first, incarnation + 1)
        return incarnation >= first

    def is_late(self, admit: Admit) -> bool:
        """It comes from a process that is over."""
        return admit.incarnation < self._first.get(admit.tokenizer, 0)
