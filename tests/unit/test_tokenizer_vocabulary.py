"""Vocabularies from folders and GGUF metadata: ids, special tokens, BOS, end tokens."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.gguf_files import write_twin
from tests.support.tokenizer_oracle import ask_transformers
from tests.support.tokenizers import folder_vocabulary, gguf_metadata, sentencepiece_metadata
from tokenizer_proc import gguf_source
from tokenizer_proc.errors import VocabularyError
from tokenizer_proc.pre_tokenizers import KINDS
from tokenizer_proc.vocabulary import Vocabulary, build_vocabulary, load_vocabulary

BOS, EOS, EOT = 292, 293, 294
TEXTS = [
    "Hello, world!",
    " leading and  double   spaces \t tabs\n\nnewlines\r\n",
    "I'm sure they'll've said 'it's' WE'RE",
    "1234567890 3.14159 1,000,000 x2 2x",
    "na\u00efve \u00e9t\u00e9 \u4f60\u597d\u4e16\u754c \u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439 \u0645\u0631\u062d\u0628\u0627",
    "\U0001fae0\U0001f468\u200d\U0001f469\u200d\U0001f467 \ufffd \u0000\u0001",
    "def f(x):\n    return x ** 2  # square\n\tif (a<b&&c>=d) {}",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "1. one\n\n2. two\n   10 indented",
    "a" * 300,
    "",
    "e\u0301 vs \u00e9",
]


@pytest.fixture
def folder(models: Path, tmp_path: Path) -> Path:
    """A copy of dice-byte to change."""
    return Path(shutil.copytree(models / "dice-byte", tmp_path / "model"))


def change(path: Path, **values: Any) -> None:
    """Set keys of a JSON file; None stays null, `...` removes."""
    content = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not ...}))


def of_metadata(metadata: dict[str, Any]) -> Vocabulary:
    return build_vocabulary(gguf_source.source_of(metadata), 312, frozenset())


def test_bos_rules_of_the_folder(folder: Path) -> None:
    vocabulary = load_vocabulary(folder)
    assert vocabulary.size == 312
    assert vocabulary.encode("A", True) == [BOS, 32]
    assert vocabulary.encode("A", False) == [32]
    assert vocabulary.encode("<|bos|>A", True) == [BOS, 32]
    assert vocabulary.encode("<|bos|><|bos|>A", True) == [BOS, BOS, 32]
    assert vocabulary.encode("<|bos|><|user|>A<|eot|><|assistant|>", False) == [292, 295, 32, 294, 296]


@pytest.mark.parametrize(("flags", "ids"), [({"add_bos_token": False}, [32]), ({"add_bos_token": True, "add_eos_token": True}, [BOS, 32, EOS])])
def test_flags_of_tokenizer_config(folder: Path, flags: dict[str, bool], ids: list[int]) -> None:
    change(folder / "tokenizer_config.json", **flags)
    assert load_vocabulary(folder).encode("A", True) == ids


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "ends"),
    [
        (EOT, ..., "<|eos|>", {EOS, EOT}),
        ([EOS, EOT], ..., None, {EOS, EOT}),
        (None, [EOS, EOT], None, {EOS, EOT}),
        (None, EOT, "<|eos|>", {EOS, EOT}),
        (EOS, ..., {"content": "<|eot|>"}, {EOS, EOT}),
        (None, None, None, set()),
    ],
)
def test_end_tokens_are_a_union(folder: Path, config: Any, generation: Any, tokenizer: Any, ends: set[int]) -> None:
    change(folder / "config.json", eos_token_id=config)
    change(folder / "tokenizer_config.json", eos_token=tokenizer)
    if generation is ...:
        (folder / "generation_config.json").unlink()
    else:
        change(folder / "generation_config.json", eos_token_id=generation)
    assert load_vocabulary(folder).end_ids == ends


def test_special_tokens_map_fills_gaps(folder: Path) -> None:
    change(folder / "tokenizer_config.json", bos_token=..., eos_token=...)
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": {"content": "<|bos|>"}, "eos_token": "<|eot|>"}))
    vocabulary = load_vocabulary(folder)
    assert vocabulary.names == {"bos_token": "<|bos|>", "eos_token": "<|eot|>"}


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_broken_files_are_named(folder: Path, name: str) -> None:
    (folder / name).write_text("{broken")
    with pytest.raises(VocabularyError, match=name):
        load_vocabulary(folder)


def test_missing_tokenizer_is_said(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(VocabularyError, match=r"no tokenizer\.json"):
        load_vocabulary(folder)
    (folder / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\x00")
    with pytest.raises(VocabularyError, match="SentencePiece"):
        load_vocabulary(folder)


@pytest.mark.parametrize("text", ["Hello world END", "the cat dog", "\u00e9\U0001fae0", "<|user|> one two three<|eot|>", "User: x", ""])
def test_gguf_equals_its_byte_level_twin(models: Path, text: str) -> None:
    twin = folder_vocabulary(models / "dice-byte")
    metadata = gguf_metadata(models / "dice-byte", add_bos_token=True)
    vocabulary = of_metadata(metadata)
    assert vocabulary.pieces.of == twin.pieces.of
    assert vocabulary.template == twin.template
    assert vocabulary.encode(text, True) == twin.encode(text, True)


@pytest.mark.parametrize("text", ["the cat", " the  Hello world", "true trueEND", "\u00e9\U0001fae0x", "<|user|>the<|eot|> cat", "zzz", ""])
def test_gguf_equals_its_sentencepiece_twin(models: Path, text: str) -> None:
    twin = folder_vocabulary(models / "dice-spm")
    vocabulary = of_metadata(sentencepiece_metadata(models / "dice-spm"))
    assert vocabulary.encode(text, True) == twin.encode(text, True)
    assert vocabulary.encode(text, False) == twin.encode(text, False)
    assert vocabulary.pieces.of[:312] == twin.pieces.of[:312]


@pytest.mark.parametrize(
    ("changes", "ids"),
    [
        ({"add_bos_token": True}, [BOS, 32]),
        ({"add_bos_token": False}, [32]),
        ({}, [32]),
        ({"pre": "llama-bpe"}, [BOS, 32]),
        ({"add_bos_token": True, "bos_token_id": None}, [32]),
        ({"add_bos_token": True, "add_eos_token": True}, [BOS, 32, EOS]),
    ],
)
def test_gguf_bos_flag(models: Path, changes: dict[str, Any], ids: list[int]) -> None:
    assert of_metadata(gguf_metadata(models / "dice-byte", **changes)).encode("A", True) == ids


@pytest.mark.parametrize(("flags", "ids"), [({}, [BOS, 32]), ({"add_bos": False}, [32]), ({"add_bos": None}, [32]), ({"bos": False}, [32])])
def test_gguf_file_is_the_folders_twin(models: Path, tmp_path: Path, flags: dict[str, bool | None], ids: list[int]) -> None:
    folder = load_vocabulary(models / "dice-byte")
    twin = load_vocabulary(write_twin(models / "dice-byte", tmp_path / "twin.gguf", **flags))  # type: ignore[arg-type]
    assert (twin.size, twin.end_ids, twin.template) == (folder.size, folder.end_ids, folder.template)
    assert twin.encode("A", True) == ids
    assert twin.encode("<|bos|><|user|>A<|eot|><|assistant|>", False) == [292, 295, 32, 294, 296]


def test_gguf_end_tokens(models: Path) -> None:
    assert of_metadata(gguf_metadata(models / "dice-byte", eot_token_id=EOT)).end_ids == {EOS, EOT}
    assert of_metadata(gguf_metadata(models / "dice-byte", eos_token_id=None)).end_ids == set()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "'bert' is not supported"),
        ({"pre": "some-new-kind"}, "'some-new-kind'.*not supported.*qwen2"),
        ({"tokens": None}, "no list"),
        ({"merges": None}, "no list"),
        ({"merges": ["a b c"]}, "not two tokens"),
        ({"merges": ["\u20ac a"]}, "do not fit"),
        ({"token_type": [1]}, "1 token types"),
        ({"bos_token_id": 9999}, "bos_token_id 9999"),
    ],
)
def test_gguf_faults_are_said(models: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VocabularyError, match=message):
        gguf_source.source_of(gguf_metadata(models / "dice-byte", **changes))


def test_gguf_user_defined_tokens_are_whole_and_visible(models: Path) -> None:
    metadata = gguf_metadata(models / "dice-byte")
    metadata["tokenizer.ggml.token_type"][295] = 4
    vocabulary = of_metadata(metadata)
    assert vocabulary.encode("A<|user|>", False) == [32, 295]
    assert 295 not in vocabulary.pieces.special


def test_every_pre_tokenizer_kind_builds(models: Path) -> None:
    for name in KINDS:
        vocabulary = of_metadata(gguf_metadata(models / "dice-byte", pre=name))
        assert vocabulary.encode("A1", False) == [32, vocabulary.encode("1", False)[0]]


def test_smollm2_ids_equal_transformers(smollm2: Path) -> None:
    texts = [*TEXTS, Path(__file__).read_text()]
    theirs = ask_transformers({"texts": texts}, str(smollm2.parent), smollm2.name)["ids"]
    vocabulary = load_vocabulary(smollm2)
    assert vocabulary.size == 49152
    assert [vocabulary.encode(text, True) for text in texts] == theirs
    assert vocabulary.names["eos_token"] == "<|im_end|>"
    assert vocabulary.end_ids == {2}
