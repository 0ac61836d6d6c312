"""The bytes each token stands for: what a tokenizer's decoder does, worked out once per token at the start."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from tokenizer_proc.byte_alphabet import unspell
from tokenizer_proc.errors import VocabularyError

MAX_IDS = 1 << 24
MAX_PIECE_CHARACTERS = 1 << 20
MAX_BYTES = 1 << 29
"""Of all pieces together."""
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")

Step = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Pieces:
    """`of[id]` is the token's bytes; text is the concatenation decoded as UTF-8, broken sequences as U+FFFD.

    `strip_spaces`: how many spaces a text loses at its very start (SentencePiece writes one there that is no part of the text).
    `strip_first`: the first visible token of a text loses all its spaces (the Metaspace decoder).
    `special`: ids whose text is hidden when special tokens are skipped. Ids without a token (rows that pad the model) are empty.
    """

    of: list[bytes]
    special: frozenset[int]
    strip_spaces: int = 0
    strip_first: bool = False

    @cached_property
    def longest(self) -> int:
        """Bytes of the longest token."""
        return max(map(len, self.of), default=1) or 1


class _Rules:
    """Collects the per-token steps of a decoder and what it does at the start of a text."""

    def __init__(self, decoder: dict[str, Any] | None) -> None:
        self.byte_level = False
        self.byte_fallback = False
        self.replacements: list[tuple[str, str]] = []
        self.strip_spaces = 0
        self.strip_first = False
        if decoder is None:
            raise VocabularyError("the tokenizer has no decoder, so its tokens cannot be turned back into text")
        self._add(decoder)

    def _add(self, decoder: dict[str, Any]) -> None:
        kind = decoder.get("type")
        if kind == "Sequence":
            for part in decoder["decoders"]:
                self._add(part)
        elif kind == "ByteLevel":
            self.byte_level = True
        elif kind == "ByteFallback":
            self.byte_fallback = True
        elif kind == "Replace" and "String" in decoder["pattern"]:
            self.replacements.append((decoder["pattern"]["String"], decoder["content"]))
        elif kind == "Metaspace":
            self.replacements.append((decoder["replacement"], " "))
            self.strip_first = decoder.get("prepend_scheme", "always") != "never"
        elif kind == "Strip" and decoder["content"] == " " and not decoder["stop"]:
            self.strip_spaces = decoder["start"]
        elif kind != "Fuse":
            raise VocabularyError(f"tokenizer decoder {kind!r} is not supported (byte-level BPE and SentencePiece-style decoders are)")

    def piece(self, token: str) -> bytes:
        if self.byte_level:
            return unspell(token)
        if self.byte_fallback and (match := BYTE_TOKEN.match(token)):
            return bytes([int(match[1], 16)])
        for old, new in self.replacements:
            if len(token) + token.count(old) * len(new) > MAX_PIECE_CHARACTERS:
                raise VocabularyError(f"the decoder makes a text of over {MAX_PIECE_CHARACTERS} characters of one token")
            token = token.replace(old, new)
        return token.encode("utf-8", "surrogatepass")


def read_pieces(tokenizer: Tokenizer, size: int) -> Pieces:
    """The table for ids 0..size-1 of the model (rows past the tokenizer's own tokens are empty). Raises VocabularyError."""
    state = tokenizer.decoder.__getstate__() if tokenizer.decoder is not None else b"null"
    rules = _Rules(json.loads(state))
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    ids = max(size, max(vocabulary.values(), default=-1) + 1)
    if ids > MAX_IDS:
        raise VocabularyError(f"token ids up to {ids - 1} are more than the {MAX_IDS} that are taken")
    table, total = [b""] * ids, 0
    for token, number in vocabulary.items():
        piece = table[number] = rules.piece(token)
        total += len(piece)
        if total > MAX_BYTES:
            raise VocabularyError(f"the tokens stand for more than {MAX_BYTES} bytes")
    special = frozenset(number for number, added in tokenizer.get_added_tokens_decoder().items() if added.special)
    return Pieces(table, special, rules.strip_spaces, rules.strip_first)
