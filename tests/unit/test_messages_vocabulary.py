"""The file with the bytes of every token: what is read is what was written, and a damaged one is refused."""

import stat
from pathlib import Path

import msgspec
import pytest

from grammar.errors import GrammarError
from grammar.vocabulary_file import TokenBytes, read_vocabulary, write_vocabulary
from messages.vocabulary import VOCABULARY_FILE, VOCABULARY_MAGIC, Vocabulary
from transport.columns import pack_i32, pack_u8

PIECES = [b"a", b"", b"<end>", "\u00e9".encode(), b"\x80"]


def test_what_is_read_is_what_was_written(run_dir: Path) -> None:
    for _ in range(2):
        write_vocabulary(run_dir, "tokenizer0", PIECES, {1, 77}, {2, 99})
    assert read_vocabulary(run_dir) == TokenBytes(PIECES, frozenset({1, 2}), [2])
    assert [path.name for path in run_dir.iterdir()] == [VOCABULARY_FILE]
    assert stat.S_IMODE((run_dir / VOCABULARY_FILE).stat().st_mode) == 0o600


def stored(**changes: object) -> bytes:
    good = Vocabulary(lengths=pack_i32([1, 2]), special=pack_u8([0, 1]), pieces=b"abc", ends=[1])
    return VOCABULARY_MAGIC + msgspec.msgpack.encode(msgspec.structs.replace(good, **changes))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read"),
        (b"something else", "does not hold"),
        (VOCABULARY_MAGIC + b"\xc1", "damaged"),
        (stored(lengths=pack_i32([1, 3])), "damaged"),
        (stored(lengths=pack_i32([-1, 4])), "damaged"),
        (stored(lengths=b"abc"), "damaged"),
        (stored(special=pack_u8([1])), "damaged"),
        (stored(ends=[0]), "damaged"),
        (stored(ends=[7]), "damaged"),
    ],
    ids=["none", "other", "no message", "long", "negative", "column", "flags", "end is text", "end is nothing"],
)
def test_a_file_that_is_not_right_is_refused(content: bytes | None, why: str, run_dir: Path) -> None:
    if content is not None:
        (run_dir / VOCABULARY_FILE).write_bytes(content)
    with pytest.raises(GrammarError, match=why):
        read_vocabulary(run_dir)


def test_the_damage_above_is_to_a_good_file(run_dir: Path) -> None:
    (run_dir / VOCABULARY_FILE).write_bytes(stored())
    assert read_vocabulary(run_dir).of == [b"a", b"bc"]
