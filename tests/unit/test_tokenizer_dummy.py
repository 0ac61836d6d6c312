"""The made-up vocabulary of a model shape."""

import pytest

from tokenizer_proc.detokenizer import decode
from tokenizer_proc.dummy_source import dummy_vocabulary


def test_every_text_comes_back_and_every_id_has_a_text() -> None:
    vocabulary = dummy_vocabulary(2000)
    text = "Ein Fluß \U0001fae0\n\x00"
    ids = vocabulary.encode(text, True)
    assert ids == list(text.encode())
    assert decode(vocabulary.pieces, ids, True) == text
    assert len(set(vocabulary.pieces.of)) == vocabulary.size == len(vocabulary.pieces.of) == 2000
    assert decode(vocabulary.pieces, [300, 65, 1999], True) == " olA xyc"


def test_too_few_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="no room"):
        dummy_vocabulary(255)
