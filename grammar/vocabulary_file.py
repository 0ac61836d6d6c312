"""Writes and reads the file with the bytes of every token."""

import os
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from grammar.errors import GrammarError
from messages.vocabulary import MOST_VOCABULARY_BYTES, VOCABULARY_FILE, VOCABULARY_MAGIC, Vocabulary
from transport.columns import ColumnError, pack_i32, pack_u8, view_i32, view_u8
from transport.marked_file import MarkedFileError, packed, read_marked
from transport.private_file import create_private


@dataclass(frozen=True)
class TokenBytes:
    """`of[id]`: the token's bytes. `special`: ids that are no text; `ends`: those of them that end an answer."""

    of: list[bytes]
    special: frozenset[int]
    ends: list[int]


def write_vocabulary(folder: Path, writer: str, of: list[bytes], special: Set[int], ends: Set[int]) -> None:
    """Put the file there at once, whole, in the place of one that is there. `writer`: a name that nobody else writes under. Raises OSError."""
    nothing_said = special | ends
    content = Vocabulary(
        lengths=pack_i32([len(piece) for piece in of]),
        special=pack_u8([number in nothing_said for number in range(len(of))]),
        pieces=b"".join(of),
        ends=sorted(end for end in ends if end < len(of)),
    )
    unfinished = folder / f"{VOCABULARY_FILE}.{writer}"
    unfinished.unlink(missing_ok=True)
    with create_private(unfinished) as file:
        file.write(packed(VOCABULARY_MAGIC, content))
    os.replace(unfinished, folder / VOCABULARY_FILE)


def read_vocabulary(folder: Path) -> TokenBytes:
    """Raises GrammarError when there is none, or it is damaged."""
    path = folder / VOCABULARY_FILE
    try:
        return _split(read_marked(path, VOCABULARY_MAGIC, MOST_VOCABULARY_BYTES, Vocabulary, "the bytes of tokens"))
    except MarkedFileError as error:
        raise GrammarError(str(error)) from error
    except ColumnError as error:
        raise GrammarError(f"{path} is damaged: {error}") from error


def _split(stored: Vocabulary) -> TokenBytes:
    lengths = view_i32(stored.lengths)
    special = np.flatnonzero(view_u8(stored.special, lengths.size))
    ends = np.cumsum(lengths, dtype=np.int64)
    if lengths.min(initial=0) < 0 or int(ends[-1] if ends.size else 0) != len(stored.pieces):
        raise ColumnError("the lengths of tokens do not fit their bytes")
    special_ids = frozenset(special.tolist())
    if not special_ids.issuperset(stored.ends):
        raise ColumnError("an end token is not special")
    of = [stored.pieces[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    return TokenBytes(of, special_ids, stored.ends)
