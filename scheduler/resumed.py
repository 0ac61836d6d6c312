"""Sequences that come again because the scheduler or a tokenizer died: with the tokens their clients have. And what comes too late from the dead."""

from collections.abc import Mapping

import numpy as np

from messages.admit import Admit
from scheduler.errors import ContractError
from scheduler.requests import Request
from transport.columns import I32, ColumnError, view_i32


def sequences_of(admit: Admit, prompt: I32) -> list[I32]:
    """All that is known of each key: the prompt, and what has been delivered of it. Raises ContractError."""
    if not admit.resumed:
        return [prompt] * len(admit.keys)
    try:
        delivered = [view_i32(column) for column in admit.resumed]
    except ColumnError as error:
        raise ContractError(f"admit with a bad column of delivered tokens: {error}") from error
    most = max(tokens.size for tokens in delivered)
    if len(delivered) != len(admit.keys) or (most and (not prompt.size or most >= (admit.max_tokens or most + 1))):
        raise ContractError(f"admit of {len(admit.keys)} keys with {len(delivered)} that ran before, and {most} tokens of at most {admit.max_tokens}")
    return [np.concatenate([prompt, tokens]) if tokens.size else prompt for tokens in delivered]


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
