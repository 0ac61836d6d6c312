"""A small vocabulary for grammars: every byte, a few longer tokens, a special one and an end."""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from grammar.llg import LlgLibrary
from grammar.matcher import Matcher
from grammar.vocabulary_file import TokenBytes

LONGER = [b'{"', b'":', b'",', b'"}', b"  ", b": ", b"true", b"null", b"ab", b'{"a', "\u00e9".encode(), b"\n  "]
SPECIAL = 256 + len(LONGER)
END = SPECIAL + 1
TOKENS = TokenBytes([*(bytes([byte]) for byte in range(256)), *LONGER, b"<mark>", b"<end>"], frozenset({SPECIAL, END}), [END])
SIZE = len(TOKENS.of)


@cache
def library() -> LlgLibrary:
    return LlgLibrary(TOKENS)


def allowed(mask: NDArray[np.int32]) -> list[int]:
    """The tokens of one mask."""
    found: list[int] = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
    return found


def next_tokens(matcher: Matcher) -> list[int]:
    return allowed(library().masks([matcher])[0])


def accepts(program: str, text: str | bytes) -> bool:
    """Whether the text, byte by byte, is a whole of the program's grammar; each byte must have been in the mask too."""
    matcher = library().compile(program)
    for byte in text.encode() if isinstance(text, str) else text:
        inside = byte in next_tokens(matcher)
        assert matcher.copy().accept([byte]) == inside, f"{byte} in {text!r}: the mask says {inside}"
        if not inside:
            return False
        matcher.accept([byte])
    return END in next_tokens(matcher)
