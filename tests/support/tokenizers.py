"""Vocabularies for tests of the tokenizer process, without reading model weights."""

from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tokenizer_proc import folder_source
from tokenizer_proc.vocabulary import Vocabulary, build_vocabulary


@cache
def folder_vocabulary(folder: Path) -> Vocabulary:
    """The vocabulary of a fixture; the model's rows are the tokenizer's own, rounded up as make_fixtures does."""
    source = folder_source.read(folder)
    size = (source.tokenizer.get_vocab_size() + 7) // 8 * 8 + 8
    ends = {number for text in ("<|eos|>", "<|eot|>") if (number := source.tokenizer.token_to_id(text)) is not None}
    return build_vocabulary(source, size, frozenset(ends))


def gguf_metadata(folder: Path, **changes: Any) -> dict[str, Any]:
    """The metadata a .gguf twin of the byte-level fixture `folder` would hold; a change of None takes a key away."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    state = folder_source.read_json(folder / "tokenizer.json")
    tokens = [tokenizer.id_to_token(number) for number in range(tokenizer.get_vocab_size())]
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in added else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in state["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": tokens.index("<|bos|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|eos|>"),
        "tokenizer.chat_template": folder_source.read_settings(folder)["chat_template"],
    }
    metadata |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return {key: value for key, value in metadata.items() if value is not None}


def sentencepiece_metadata(folder: Path, **changes: Any) -> dict[str, Any]:
    """Like `gguf_metadata` for the SentencePiece-like fixture: scores instead of merges."""
    metadata = gguf_metadata(folder, **changes)
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [pair.replace(" ", "") for pair in metadata.pop("tokenizer.ggml.merges")]
    rank = {token: number for number, token in reversed(list(enumerate(merges)))}
    metadata["tokenizer.ggml.model"] = "llama"
    metadata["tokenizer.ggml.scores"] = [-float(rank.get(token, 0)) for token in tokens]
    metadata["tokenizer.ggml.token_type"][0] = 2
    metadata["tokenizer.ggml.unknown_token_id"] = 0
    return metadata
