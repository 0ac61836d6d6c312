"""A tokenizer from the metadata of a .gguf file (`tokenizer.ggml.*`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from checkpoint.gguf_file import read_header
from tokenizer_proc.byte_alphabet import BYTE_OF_CHARACTER, spell
from tokenizer_proc.errors import VocabularyError
from tokenizer_proc.pre_tokenizers import PreTokenizerKind, pre_tokenizer_kind
from tokenizer_proc.source import Source, add_special, set_bos_eos

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # values of tokenizer.ggml.token_type
SPACE = "\u2581"
ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
END_ROLES = ("eot", "eom")


def read(path: Path) -> Source:
    """Raises VocabularyError, or CheckpointError when the file is not GGUF."""
    return source_of(read_header(path).metadata)


def source_of(metadata: dict[str, Any]) -> Source:
    """The tokenizer that GGUF `metadata` describes. Raises VocabularyError."""
    fields = _Fields(metadata)
    model = fields.text("model")
    if model == "gpt2":
        kind = pre_tokenizer_kind(fields.text("pre", "default"))
        tokenizer, add_bos = _byte_level(fields, kind), kind.add_bos
    elif model == "llama":
        tokenizer, add_bos = _sentencepiece(fields), True
    else:
        raise VocabularyError(f"tokenizer.ggml.model {model!r} is not supported (gpt2 and llama are)")
    names = {role: token for key, role in ROLES.items() if (token := fields.special(key)) is not None}
    ends = tuple(token for key in END_ROLES if (token := fields.special(key)) is not None)
    _add_tokens(tokenizer, fields, [names.get("bos_token", ""), names.get("eos_token", ""), *ends])
    bos = names.get("bos_token") if fields.flag("add_bos_token", add_bos) else None
    eos = names.get("eos_token") if fields.flag("add_eos_token", False) else None
    set_bos_eos(tokenizer, bos, eos)
    template = metadata.get("tokenizer.chat_template")
    return Source(tokenizer, names, template if isinstance(template, str) else None, ends)


class _Fields:
    """Typed access to `tokenizer.ggml.*`."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        self._metadata = metadata
        self.tokens: list[str] = list(self._column("tokens"))
        self.types: list[int] = [int(kind) for kind in self._column("token_type", required=False)]
        if self.types and len(self.types) != len(self.tokens):
            raise VocabularyError(f"{len(self.types)} token types for {len(self.tokens)} tokens")

    def _column(self, key: str, required: bool = True) -> Sequence[Any]:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        if value is None and not required:
            return ()
        if value is None or isinstance(value, str | int | float):
            raise VocabularyError(f"the metadata has no list tokenizer.ggml.{key}")
        column: Sequence[Any] = value
        return column

    def text(self, key: str, default: str | None = None) -> str:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, str):
            raise VocabularyError(f"the metadata has no text tokenizer.ggml.{key}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        return bool(self._metadata.get(f"tokenizer.ggml.{key}", default))

    def special(self, key: str) -> str | None:
        """Text of the token whose id is `<key>_token_id`; None when the file does not name one (no other token stands in for it)."""
        value = self._metadata.get(f"tokenizer.ggml.{key}_token_id")
        if value is None:
            return None
        number = int(value)
        if not 0 <= number < len(self.tokens):
            raise VocabularyError(f"tokenizer.ggml.{key}_token_id {number} is not one of the {len(self.tokens)} tokens")
        return self.tokens[number]

    def of_type(self, kind: int) -> list[str]:
        return [token for token, number in zip(self.tokens, self.types, strict=False) if number == kind]

    def merges(self) -> list[tuple[str, str]]:
        pairs = [tuple(str(merge).split(" ")) for merge in self._column("merges")]
        if any(len(pair) != 2 for pair in pairs):
            raise VocabularyError("an entry of tokenizer.ggml.merges is not two tokens")
        return [(pair[0], pair[1]) for pair in pairs]

    def scores(self) -> list[float]:
        scores = [float(score) for score in self._column("scores")]
        if len(scores) != len(self.tokens):
            raise VocabularyError(f"{len(scores)} scores for {len(self.tokens)} tokens")
        return scores


def _byte_level(fields: _Fields, kind: PreTokenizerKind) -> Tokenizer:
    added = {*fields.of_type(CONTROL), *fields.of_type(USER_DEFINED)}
    vocabulary = {token if token in added else _respell(token): number for number, token in enumerate(fields.tokens)}
    tokenizer = _build_bpe(vocabulary, fields.merges(), ignore_merges=kind.whole_words)
    tokenizer.pre_tokenizer = kind.build()
    tokenizer.decoder = decoders.ByteLevel()
    if kind.compose:
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _respell(token: str) -> str:
    """Some files write a token as plain text instead of in the byte alphabet."""
    return token if all(character in BYTE_OF_CHARACTER for character in token) else spell(token.encode())


def _sentencepiece(fields: _Fields) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(fields.tokens)}
    unknown = fields.special("unknown") or next(iter(fields.of_type(UNKNOWN)), None)
    merges = merges_by_score(fields.tokens, fields.scores())
    tokenizer = _build_bpe(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    space = normalizers.Replace(" ", SPACE)
    prefix = fields.flag("add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), space]) if prefix else space
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def merges_by_score(tokens: Sequence[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """SentencePiece joins the pair whose whole has the best score first: every way to cut a token into two, best whole first."""
    number_of = {token: number for number, token in enumerate(tokens)}
    merges: list[tuple[float, int, int, int]] = []
    for whole, token in enumerate(tokens):
        for cut in range(1, len(token)):
            left, right = number_of.get(token[:cut]), number_of.get(token[cut:])
            if left is not None and right is not None:
                merges.append((-scores[whole], whole, left, right))
    return [(tokens[left], tokens[right]) for _, _, left, right in sorted(merges)]


def _build_bpe(vocabulary: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> Tokenizer:
    try:
        return Tokenizer(models.BPE(vocab=vocabulary, merges=merges, **options))
    except Exception as error:  # the library raises plain Exception: a merge of a token that is not in the vocabulary, say
        raise VocabularyError(f"the vocabulary and merges do not fit together: {error}") from error


def _add_tokens(tokenizer: Tokenizer, fields: _Fields, named: list[str]) -> None:
    """Control tokens and the unknown token are special; user-defined ones are matched whole but stay visible."""
    add_special(tokenizer, [*fields.of_type(CONTROL), *fields.of_type(UNKNOWN), *named])
    special = {added.content for added in tokenizer.get_added_tokens_decoder().values()}
    plain = [token for token in fields.of_type(USER_DEFINED) if token not in special]
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in plain])
