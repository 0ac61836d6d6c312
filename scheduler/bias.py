"""Changes to a sequence's logits as a plan's columns have them: made once for a request, sent whenever it gets a slot."""

import math
from dataclasses import dataclass

from messages.admit import Admit
from messages.plan import Biases
from transport.columns import pack_f32, pack_i32, pack_u8

NEVER = -math.inf


@dataclass(frozen=True, slots=True)
class Bias:
    """`token`, `value` and `since` are columns of `count` entries as in `messages.plan.Biases`; `words` have two tokens or more.

    `largest`: the highest token id of all.
    """

    closed: bool
    count: int
    token: bytes
    value: bytes
    since: bytes
    words: list[list[int]]
    largest: int


def bias_of(admit: Admit, prompt_len: int) -> Bias | None:
    """What the request's constraints come to; None when they change nothing."""
    constraints = admit.constraints
    if constraints is None:
        return None
    banned = {word[0] for word in admit.banned if len(word) == 1}
    held = frozenset(admit.end_ids) if constraints.min_tokens else frozenset[int]()
    named = constraints.allowed or [*constraints.bias, *banned, *held]
    entries = {token: NEVER if token in banned else constraints.bias.get(token, 0.0) for token in sorted(set(named))}
    words = [word for word in admit.banned if len(word) > 1]
    if not entries and not words:
        return None
    first = min(prompt_len + constraints.min_tokens, 2**31 - 1)
    return Bias(
        closed=bool(constraints.allowed),
        count=len(entries),
        token=pack_i32(list(entries)),
        value=pack_f32(list(entries.values())),
        since=pack_i32([first if token in held else 0 for token in entries]),
        words=words,
        largest=max([*entries, *(token for word in words for token in word)]),
    )


def biases(rows: list[tuple[int, Bias]]) -> Biases | None:
    """Columns of rows (slot, bias) that have just been given their slots."""
    if not rows:
        return None
    words = [(slot, word) for slot, bias in rows for word in bias.words]
    return Biases(
        slot=pack_i32([slot for slot, _ in rows]),
        closed=pack_u8([bias.closed for _, bias in rows]),
        count=pack_i32([bias.count for _, bias in rows]),
        token=b"".join(bias.token for _, bias in rows),
        value=b"".join(bias.value for _, bias in rows),
        since=b"".join(bias.since for _, bias in rows),
        word_slot=pack_i32([slot for slot, _ in words]),
        word_count=pack_i32([len(word) for _, word in words]),
        word_tokens=pack_i32([token for _, word in words for token in word]),
    )
