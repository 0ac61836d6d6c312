"""Sequences that come again because the scheduler or a tokenizer died: with the tokens their clients have."""

import numpy as np

from messages.admit import Admit
from scheduler.errors import ContractError
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
