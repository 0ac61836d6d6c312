"""A model's vocabulary: text to ids, what each id stands for, and which ids are special."""

from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from checkpoint.config import read_config
from tokenizer_proc import folder_source, gguf_source, tiktoken_source
from tokenizer_proc.errors import VocabularyError
from tokenizer_proc.pieces import Pieces, read_pieces
from tokenizer_proc.source import Source

NORMALIZING_SHRINKS = 4  # a normalizer (NFC, say) leaves no less than this part of the bytes


@dataclass(frozen=True)
class Vocabulary:
    """`size`: the model accepts ids 0..size-1. `end_ids` end an answer: those of config, generation config and tokenizer together.

    `names` are the special tokens by role, for chat templates; `special_ids` maps the text of a special token to its id.
    """

    tokenizer: Tokenizer
    pieces: Pieces
    size: int
    end_ids: frozenset[int]
    names: dict[str, str]
    template: str | None
    bos_id: int | None
    special_ids: dict[str, int]

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Ids of `text`. A text that already begins with the BOS token does not get a second one. Other threads run meanwhile."""
        batch = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)  # of the encoders only this lets go of the GIL
        ids = list(batch[0].ids)
        if add_special_tokens and len(ids) > 1 and ids[0] == ids[1] == self.bos_id and text.startswith(self.names["bos_token"]):
            return ids[1:]
        return ids

    def most_bytes(self, tokens: int) -> int:
        """A text of more bytes than this cannot be as few as `tokens` ids."""
        return self.pieces.longest * tokens * (1 if self.tokenizer.normalizer is None else NORMALIZING_SHRINKS)


def load_vocabulary(path: Path) -> Vocabulary:
    """From a model folder (tokenizer.json, or a tiktoken tokenizer.model) or a .gguf file. Raises VocabularyError or CheckpointError."""
    config = read_config(path)
    try:
        return build_vocabulary(read_source(path), config.vocab, frozenset(config.end_ids))
    except VocabularyError as error:
        raise VocabularyError(f"{path}: {error}") from error


def read_source(path: Path) -> Source:
    """The tokenizer of `path` in whichever format it has. Raises VocabularyError or CheckpointError."""
    if path.is_file():
        return gguf_source.read(path)
    if (path / "tokenizer.json").is_file():
        return folder_source.read(path)
    if (path / "tokenizer.model").is_file():
        return tiktoken_source.read(path)
    raise VocabularyError("there is no tokenizer.json in the model folder (nor a tiktoken tokenizer.model); it is needed next to the weights")


def build_vocabulary(source: Source, size: int, end_ids: frozenset[int]) -> Vocabulary:
    """`size` and `end_ids` are the model's (config and generation config). Raises VocabularyError."""
    tokenizer = source.tokenizer
    ends = [source.names[role] for role in ("eos_token",) if role in source.names] + list(source.end_texts)
    numbers = {tokenizer.token_to_id(text) for text in ends} - {None}
    return Vocabulary(
        tokenizer=tokenizer,
        pieces=read_pieces(tokenizer, size),
        size=size,
        end_ids=end_ids | {number for number in numbers if number is not None},
        names=source.names,
        template=source.template,
        bos_id=tokenizer.token_to_id(source.names["bos_token"]) if "bos_token" in source.names else None,
        special_ids={added.content: number for number, added in tokenizer.get_added_tokens_decoder().items() if added.special},
    )
