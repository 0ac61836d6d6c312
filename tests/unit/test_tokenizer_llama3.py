"""The real Llama-3 vocabulary (tiktoken format, from the PyPI package llama-models) gives the published ids."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tokenizer_proc import tiktoken_source
from tokenizer_proc.vocabulary import Vocabulary, build_vocabulary

PACKAGE, WHEEL = "llama-models==0.3.0", "llama_models-0.3.0-py3-none-any.whl"
SHA256 = "7f77f78ff13fca09f70d76a376aff6414cd901623fb9d57e69c2f8367a73032f"
MEMBER = "llama_models/llama3/tokenizer.model"
CACHE = Path(os.environ.get("PAGEWIRE_TEST_CACHE", "~/.cache/pagewire/tests")).expanduser()


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    wheel = CACHE / WHEEL
    if not wheel.is_file():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", str(CACHE), PACKAGE]
        subprocess.run(command, check=True, timeout=110)
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == SHA256
    folder = tmp_path_factory.mktemp("llama3")
    with zipfile.ZipFile(wheel) as archive:
        (folder / "tokenizer.model").write_bytes(archive.read(MEMBER))
    return build_vocabulary(tiktoken_source.read(folder), 128_256, frozenset())


def chat(question: str) -> str:
    user = f"<|start_header_id|>user<|end_header_id|>\n\n{question}<|eot_id|>"
    return f"<|begin_of_text|>{user}<|start_header_id|>assistant<|end_header_id|>\n\n"


@pytest.mark.parametrize(
    ("question", "middle"),
    [
        ("What is 2+2?", [3923, 374, 220, 17, 10, 17, 30]),
        ("Name a color.", [678, 264, 1933, 13]),
        ("Say hello.", [46864, 24748, 13]),
        ("Capital of France?", [64693, 315, 9822, 30]),
    ],
)
def test_published_prompts(llama3: Vocabulary, question: str, middle: list[int]) -> None:
    before, after = [128000, 128006, 882, 128007, 271], [128009, 128006, 78191, 128007, 271]
    assert llama3.encode(chat(question), add_special_tokens=False) == [*before, *middle, *after]
    assert llama3.encode(chat(question), add_special_tokens=True) == [*before, *middle, *after]


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([791, 4320, 374, 220, 19], "The answer is 4"),
        ([791, 6864, 315, 9822, 374, 12366, 13], "The capital of France is Paris."),
    ],
)
def test_published_answers(llama3: Vocabulary, ids: list[int], text: str) -> None:
    from tokenizer_proc.detokenizer import decode

    assert decode(llama3.pieces, ids, skip_special=True) == text


def test_special_tokens(llama3: Vocabulary) -> None:
    assert llama3.bos_id == 128000
    assert llama3.end_ids == {128001, 128008, 128009}
    assert llama3.special_ids["<|reserved_special_token_245|>"] == 128_255
    assert llama3.encode("Hello", add_special_tokens=True) == [128000, 9906]
