"""Token ids to text, one token at a time, at a constant cost per token."""

import codecs
from collections.abc import Iterable, Sequence

from tokenizer_proc.pieces import Pieces

REPLACEMENT = "\ufffd"
_new_decoder = codecs.getincrementaldecoder("utf-8")
_LONGEST_INCOMPLETE = 3  # bytes of a UTF-8 character that lacks its last byte


class Detokenizer:
    """The text of one sequence. The concatenation of all `push()` and the last `flush()` is decode(prompt + answer) minus decode(prompt).

    Bytes that may still become a character are held back; anything else, a U+FFFD that the model really wrote included, comes out at
    once. A character begun by the prompt's last tokens and finished by the answer comes whole.
    """

    def __init__(self, pieces: Pieces, prompt: Sequence[int] = (), skip_special: bool = True, shown: frozenset[int] = frozenset()) -> None:
        """`shown`: special tokens that are not skipped."""
        self._of = pieces.of
        hidden = pieces.special if skip_special else frozenset[int]()
        self._hidden = hidden - shown if shown else hidden
        self._decoder = _new_decoder("replace")
        self._strip_first = pieces.strip_first
        self._strip_spaces = pieces.strip_spaces
        self._at_start = bool(self._strip_spaces or self._strip_first)
        self._inside_character = False
        self._begin_after(prompt)

    def _begin_after(self, prompt: Sequence[int]) -> None:
        if self._at_start and any(self._visible(token) for token in prompt):
            self._at_start = False
        tail = b""
        for token in reversed(prompt):
            tail = self._visible(token) + tail
            if len(tail) >= _LONGEST_INCOMPLETE:
                break
        self._decoder.decode(tail)
        self._inside_character = bool(self._decoder.getstate()[0])

    def hides(self, token: int) -> bool:
        """It is special, and leaves no text."""
        return token in self._hidden

    def _visible(self, token: int) -> bytes:
        return b"" if token in self._hidden else self._of[token]

    def push(self, token: int) -> str:
        """New text that `token` makes certain; may be empty."""
        piece = self._visible(token)
        if not piece:
            return ""
        if self._at_start:
            piece = self._strip(piece)
        text = self._decoder.decode(piece)
        return self._settle(text) if self._inside_character and text else text

    def flush(self) -> str:
        """What is held back, at the end of the sequence: half a character gives U+FFFD."""
        text = self._decoder.decode(b"", True)
        return self._settle(text) if self._inside_character and text else text

    def _settle(self, text: str) -> str:
        """The prompt's own text already ends with U+FFFD for its half character: do not say it twice."""
        self._inside_character = False
        return text.removeprefix(REPLACEMENT)

    def _strip(self, piece: bytes) -> bytes:
        if self._strip_first:
            self._at_start = False
            return piece.replace(b" ", b"")
        kept = piece.lstrip(b" ")
        cut = min(len(piece) - len(kept), self._strip_spaces)
        self._strip_spaces -= cut
        self._at_start = self._strip_spaces > 0 and cut == len(piece)
        return piece[cut:]


def decode(pieces: Pieces, ids: Iterable[int], skip_special: bool) -> str:
    """The text of a whole sequence, by the same rule as `Detokenizer`."""
    detokenizer = Detokenizer(pieces, (), skip_special)
    return "".join([detokenizer.push(token) for token in ids]) + detokenizer.flush()
