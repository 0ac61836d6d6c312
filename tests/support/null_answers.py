"""What a worker without a model says: tokens and logprobs that follow from what it was asked alone."""

import zlib
from struct import Struct

from messages.tokens import FINISH_END_TOKEN, FINISH_ERROR, FINISH_LENGTH, LogprobColumns
from transport.columns import pack_f32, pack_i32

POISON_SEED_MARK = 1 << 40
"""A seed with this bit gets non-finite logits at the length in its lowest 10 bits."""

_DRAW = Struct("<Iqi").pack


def draw(seed: int, length: int, prompt_len: int, checksum: int, vocab: int) -> int | None:
    """The token at `length`; `checksum` is that of all before it, None for non-finite logits."""
    if seed & POISON_SEED_MARK and length == seed & 1023:
        return None
    return zlib.crc32(_DRAW(checksum, seed, prompt_len)) % vocab


def sample(seed: int, tokens: list[int], vocab: int, prompt_len: int = 0) -> int | None:
    """The token after `tokens`, or None for non-finite logits. `prompt_len` as in the row's admission (penalties depend on it)."""
    return draw(seed, len(tokens), prompt_len, zlib.crc32(pack_i32(tokens)), vocab)


def reference(seed: int, prompt: list[int], max_tokens: int | None, end_ids: list[int], context: int, vocab: int) -> tuple[list[int], int]:
    """What a request must give, alone: its tokens and its finish."""
    tokens: list[int] = []
    start, limit = len(prompt), context if max_tokens is None else min(context, len(prompt) + max_tokens)
    checksum = zlib.crc32(pack_i32(prompt))
    while True:
        token = draw(seed, start + len(tokens), start, checksum, vocab)
        if token is None:
            return tokens, FINISH_ERROR
        tokens.append(token)
        if token in end_ids:
            return tokens, FINISH_END_TOKEN
        if start + len(tokens) >= limit:
            return tokens, FINISH_LENGTH
        checksum = zlib.crc32(token.to_bytes(4, "little"), checksum)


def logprobs_of(asked: list[tuple[int, int, int]]) -> LogprobColumns | None:
    """Made-up logprobs that name their token: chosen -token/8, alternatives token + 1, token + 2, ..."""
    if not asked:
        return None
    return LogprobColumns(
        row=pack_i32([place for place, _, _ in asked]),
        chosen=pack_f32([-token / 8 for _, token, _ in asked]),
        count=pack_i32([number for _, _, number in asked]),
        top_ids=pack_i32([token + 1 + i for _, token, number in asked for i in range(number)]),
        top=pack_f32([-i / 8 for _, _, number in asked for i in range(number)]),
    )
