"""How text is cut before byte-level BPE, by the name GGUF files give it (`tokenizer.ggml.pre`).

The names and the groups they form are those of llama.cpp; the expressions are facts about the models (OpenAI's and Meta's published
patterns).
"""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from tokenizer_proc.errors import VocabularyError

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizerKind:
    """`pattern` None: GPT-2's own. `whole_words`: an entry of the vocabulary is taken as it is, whatever the merges say (ignore_merges).

    `add_bos`: what a file that does not say gets. `compose`: text is brought to Unicode NFC first.
    """

    pattern: str | None = None
    whole_words: bool = False
    add_bos: bool = False
    compose: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        if self.pattern is None:
            return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )


# `smollm` is cut as transformers cuts it. llama.cpp also parts every digit from what is before it; as no merge joins digits, the ids differ
# only where blanks stand before a digit (two line feeds and a number, say).
_GPT2 = PreTokenizerKind()
_LLAMA3 = PreTokenizerKind(LLAMA3_PATTERN, whole_words=True, add_bos=True)
_QWEN2 = PreTokenizerKind(QWEN2_PATTERN, compose=True)
_TEKKEN = PreTokenizerKind(TEKKEN_PATTERN, whole_words=True, add_bos=True)

KINDS = {
    **dict.fromkeys(("gpt-2", "gpt2", "default", "smollm", "olmo", "mpt", "jais"), _GPT2),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
    "tekken": _TEKKEN,
}


def pre_tokenizer_kind(name: str) -> PreTokenizerKind:
    """Raises VocabularyError for a kind that is not known: cutting text in another way would give wrong ids silently."""
    try:
        return KINDS[name]
    except KeyError:
        known = ", ".join(sorted(KINDS))
        raise VocabularyError(f"pre-tokenizer {name!r} (tokenizer.ggml.pre) is not supported; supported are {known}") from None
