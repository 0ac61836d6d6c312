"""A tokenizer from a tiktoken vocabulary (`tokenizer.model` as Meta ships Llama 3): base64 of each token's bytes and its rank."""

import base64
import binascii
from pathlib import Path

from tokenizers import Tokenizer, decoders, models

from tokenizer_proc.byte_alphabet import spell
from tokenizer_proc.errors import VocabularyError
from tokenizer_proc.folder_source import folder_template, read_settings
from tokenizer_proc.pre_tokenizers import pre_tokenizer_kind
from tokenizer_proc.source import Source, add_special, set_bos_eos

SPECIAL_TOKENS = 256
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
END_TOKENS = ("<|eot_id|>", "<|eom_id|>")
NAMED = (
    *(BOS, EOS, "<|reserved_special_token_0|>", "<|reserved_special_token_1|>", "<|finetune_right_pad_id|>", "<|step_id|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>", "<|image|>"),
)


def read(folder: Path) -> Source:
    """Raises VocabularyError."""
    ranks = read_ranks(folder / "tokenizer.model")
    kind = pre_tokenizer_kind("llama3")
    vocabulary = {spell(token): rank for token, rank in ranks.items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges_of(ranks), ignore_merges=kind.whole_words))
    tokenizer.pre_tokenizer = kind.build()
    tokenizer.decoder = decoders.ByteLevel()
    add_special(tokenizer, llama3_special_tokens())
    set_bos_eos(tokenizer, BOS, None)
    return Source(tokenizer, {"bos_token": BOS, "eos_token": EOS}, folder_template(folder, read_settings(folder)), END_TOKENS)


def read_ranks(path: Path) -> dict[bytes, int]:
    """Token bytes to rank. Raises VocabularyError, also for the SentencePiece files that go by the same name."""
    ranks: dict[bytes, int] = {}
    try:
        for line in path.read_bytes().splitlines():
            if line:
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
    except OSError as error:
        raise VocabularyError(f"{path.name} cannot be read: {error}") from error
    except (ValueError, binascii.Error) as error:
        message = f"{path.name} is not a tiktoken vocabulary (a SentencePiece one needs its tokenizer.json twin in the folder)"
        raise VocabularyError(message) from error
    if sorted(ranks.values()) != list(range(len(ranks))):
        raise VocabularyError(f"{path.name}: ranks are not 0 to {len(ranks) - 1}, each once")
    return ranks


def merges_of(ranks: dict[bytes, int]) -> list[tuple[str, str]]:
    """The BPE merges that give these ranks: every way to cut a token into two tokens, in order of the token's rank, then of the parts'."""
    merges: list[tuple[int, int, int]] = []
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = ranks.get(token[:cut]), ranks.get(token[cut:])
            if left is not None and right is not None:
                merges.append((rank, left, right))
    spelled = {rank: spell(token) for token, rank in ranks.items()}
    return [(spelled[left], spelled[right]) for _, left, right in sorted(merges)]


def llama3_special_tokens() -> list[str]:
    """In the order of their ids, which follow the ranks."""
    reserved = [f"<|reserved_special_token_{number}|>" for number in range(2, 2 + SPECIAL_TOKENS - len(NAMED))]
    return [*NAMED, *reserved]
