"""A tiny model that thinks, calls a calculator and then answers: each token has one successor (`chain` of make_fixtures), so that its text is known.

The markers are special tokens, as in the vocabularies of Qwen: a text without special tokens would lack them.
"""

import json
import subprocess
import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.fixtures import make_fixtures

ROOT = Path(__file__).resolve().parents[2]
MARKERS = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
ROLES = ["<|tool|>", "<|answer|>", "<|thinking|>"]
THOUGHT = ["Let me", " think about", " it."]
CALL = ['{"name": "calculator", "arguments": ', '{"expression"', ': "6 * 7', '"}', "}"]
ANSWER = ["It is", " forty-", "two."]
GAP = ["\n\n\n", "\n\n"]
TEMPLATE = """{{- bos_token }}
{%- if tools %}<|system|>Tools: {{ tools | tojson }} Call them as <tool_call>{"name": "f", "arguments": {...}}</tool_call>.<|eot|>{% endif %}
{%- for message in messages %}
{{- '<|' + message.role + '|>' }}
{%- if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}</tool_call>' }}
{%- endfor %}<|eot|>
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|answer|>' if messages[-1].role == 'tool' else '<|thinking|><think>' if enable_thinking is defined and enable_thinking else '<|assistant|>' }}
{%- endif %}"""


def make(folder: Path) -> Path:
    """The model in a new `folder`, made by a process of its own: what writes it leaves its files open.

    After a result it says ANSWER; else it thinks (behind `<think>`, which the template writes with enable_thinking), and then calls.
    """
    subprocess.run([sys.executable, "-m", "tests.support.tool_model", str(folder)], cwd=ROOT, check=True, capture_output=True, timeout=60)
    return folder


def _write(folder: Path) -> None:
    tokenizer = _tokenizer()
    make_fixtures.write_tok(tokenizer, str(folder))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    ids = [[_id(tokenizer, token) for token in text] for text in _texts()]
    size = (tokenizer.get_vocab_size() + 7) // 8 * 8 + 8
    make_fixtures.write_model(str(folder), tokenizer, make_fixtures.weights(size, "chain", nxt=make_fixtures.chain_map(tokenizer, ids)))


def _texts() -> list[list[str]]:
    thought = ["<think>", GAP[0], *THOUGHT, "</think>", GAP[1], "<tool_call>", *CALL, "</tool_call>", "<|eot|>"]
    return [["<|assistant|>", *thought], ["<|answer|>", *ANSWER, "<|eot|>"]]


def _id(tokenizer: Tokenizer, token: str) -> int:
    number = tokenizer.token_to_id(token)
    if number is None:
        raise ValueError(f"no token {token!r}")
    return int(number)


def _tokenizer() -> Tokenizer:
    vocabulary = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [*make_fixtures.SPECIALS, *MARKERS, *ROLES]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    words = [*THOUGHT, *CALL, *ANSWER, *GAP]
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in words])
    return tokenizer


if __name__ == "__main__":
    _write(Path(sys.argv[1]))
