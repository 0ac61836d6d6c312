"""What a reader of one tokenizer format hands over, and what the readers share."""

from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer, processors


class Source(NamedTuple):
    """`names`: role (`bos_token`, `eos_token`, ...) to text. `template`: source of the model's own chat template, or None.

    `end_texts`: tokens besides `eos_token` that the tokenizer itself names as ends.
    """

    tokenizer: Tokenizer
    names: dict[str, str]
    template: str | None
    end_texts: tuple[str, ...] = ()


def add_special(tokenizer: Tokenizer, texts: list[str]) -> None:
    """Have `texts` matched whole in any text and hidden when special tokens are skipped. Those that are so already stay as they are."""
    present = {added.content for added in tokenizer.get_added_tokens_decoder().values() if added.special}
    tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in texts if text and text not in present])


def set_bos_eos(tokenizer: Tokenizer, bos: str | None, eos: str | None) -> None:
    """Encoding with special tokens adds `bos` in front and `eos` behind, where given."""
    texts = [text for text in (bos, eos) if text]
    special = [(text, tokenizer.token_to_id(text)) for text in dict.fromkeys(texts)]
    template = (["<bos>"] if bos else []) + ["$A"] + (["<eos>"] if eos else [])
    single = [bos if part == "<bos>" else eos if part == "<eos>" else part for part in template]
    tokenizer.post_processor = processors.TemplateProcessing(single=[part for part in single if part], special_tokens=special)
