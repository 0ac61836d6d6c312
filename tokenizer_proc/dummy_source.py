"""A vocabulary for a model shape without a checkpoint: text is its bytes, and every other id is a made-up word. For measuring speed only."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tokenizer_proc.byte_alphabet import spell
from tokenizer_proc.pieces import Pieces
from tokenizer_proc.vocabulary import Vocabulary

BYTES = 256
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def dummy_vocabulary(size: int) -> Vocabulary:
    """Of `size` ids, at least 256: 0 to 255 are bytes, id n above is a space and n in letters. Text is encoded as bytes alone."""
    if size < BYTES:
        raise ValueError(f"a vocabulary of {size} ids has no room for {BYTES} bytes")
    tokenizer = Tokenizer(models.BPE(vocab={spell(bytes([byte])): byte for byte in range(BYTES)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    pieces = [bytes([byte]) for byte in range(BYTES)] + [_word(number) for number in range(BYTES, size)]
    return Vocabulary(
        tokenizer=tokenizer, pieces=Pieces(pieces, frozenset()), size=size, end_ids=frozenset(), names={}, template=None, bos_id=None, special_ids={}
    )


def _word(number: int) -> bytes:
    letters = ""
    while number:
        number, rest = divmod(number, len(_LETTERS))
        letters += _LETTERS[rest]
    return f" {letters}".encode()
