"""What one step asks of a worker, counted from its plan."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """Prompt tokens computed, rows decoded, and positions of KV memory read: each row of the step reads its whole length once."""

    prefill_tokens: int
    decode_rows: int
    context_tokens: int
