"""A file of the run directory: the bytes of every token. A tokenizer process writes it; who compiles grammars reads it."""

import msgspec

VOCABULARY_FILE = "vocabulary"
VOCABULARY_MAGIC = b"pagewire vocabulary 1\n"
MOST_VOCABULARY_BYTES = 1 << 29


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True, tag="vocabulary"):
    """Of the ids 0, 1, ...: `lengths` i32 of their `pieces`, which are concatenated; `special` u8: 1 for tokens that are no text.

    `ends`: ids that end an answer, all of them special.
    """

    lengths: bytes
    special: bytes
    pieces: bytes
    ends: list[int]
