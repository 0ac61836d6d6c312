"""Damaged and hostile checkpoints: whatever the bytes are, the reader ends soon, with a value or a CheckpointError and nothing else."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from checkpoint.config import read_config
from checkpoint.errors import CheckpointError
from checkpoint.tensors import check_tensors, expected_tensors, open_tensors
from tests.support.gguf_files import write_twin
from tests.support.lean import lean

FEW = settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
VALUES: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "vocab_size": 24, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "eos_token_id": [1], "torch_dtype": "float32", "rope_theta": 1e4,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
    "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "head_dim": 16,
}  # fmt: skip
NUMBERS = st.sampled_from([0, 1, 2, 8, 9, 31, 32, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, (1 << 64) - 32, (1 << 64) - 1])
EDITS = st.lists(st.tuples(st.floats(0, 1), st.sampled_from([1, 4, 8]), NUMBERS), min_size=1, max_size=3)
KEEP = st.sampled_from([1.0, 1.0, 1.0, 0.999, 0.5, 0.01])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8)
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3), max_leaves=6)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A very small folder with everything that a twin needs."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "config.json").write_text(json.dumps(VALUES))
    specials = [{"id": number, "content": token, "special": True} for number, token in enumerate(["<|bos|>", "<|eos|>", "<|eot|>"])]
    vocab = {letter: number + 3 for number, letter in enumerate("abcdefgh")}
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": specials, "model": {"vocab": vocab, "merges": ["a b"]}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    shapes = expected_tensors(read_config(folder))
    save_file({name: np.ones(shape, np.float32) for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """However many damaged files were read, memory has not grown by much."""
    with lean():
        yield


def edited(raw: bytes, edits: list[tuple[float, int, int]], end: int, keep: float) -> bytes:
    """Some bytes within the first `end` overwritten, then the file cut to a part."""
    changed = bytearray(raw)
    for place, width, number in edits:
        at = int(place * (end - width))
        changed[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(changed[: int(len(raw) * keep)])


def use(path: Path) -> None:
    """Everything that a start does with a checkpoint."""
    config = read_config(path)
    source = open_tensors(path, config)
    check_tensors(source, config)
    for name in source.names():
        source.read(name)
        source.read_raw(name)


def survives(path: Path, action: Callable[[Path], object] = use) -> None:
    """The action soon works or raises CheckpointError with a message of moderate length."""
    message, started = "worked well", time.thread_time()
    try:
        action(path)
    except CheckpointError as error:
        message = str(error)
    assert time.thread_time() - started < 5
    assert 10 < len(message) < 5000


def test_the_small_checkpoints_are_sound(small: Path, tmp_path: Path) -> None:
    use(small)
    use(write_twin(small, tmp_path / "small.gguf", kind="Q4_1"))


def check_gguf(small: Path, tmp_path: Path, edits: list[tuple[float, int, int]], keep: float) -> None:
    whole = small / "small.gguf"
    if not whole.exists():
        write_twin(small, whole, kind="Q8_0")
    raw = whole.read_bytes()
    path = tmp_path / "damaged.gguf"
    path.write_bytes(edited(raw, edits, raw.index(b"blk.0.ffn_norm") + 200, keep))
    survives(path)


def check_safetensors(small: Path, tmp_path: Path, edits: list[tuple[float, int, int]], keep: float) -> None:
    raw = (small / "model.safetensors").read_bytes()
    shutil.copy(small / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(edited(raw, edits, 8 + int.from_bytes(raw[:8], "little"), keep))
    survives(tmp_path)


@FEW
@given(edits=EDITS, keep=KEEP)
def test_damaged_gguf(small: Path, tmp_path: Path, edits: list[tuple[float, int, int]], keep: float) -> None:
    check_gguf(small, tmp_path, edits, keep)


@FEW
@given(edits=EDITS, keep=KEEP)
def test_damaged_safetensors(small: Path, tmp_path: Path, edits: list[tuple[float, int, int]], keep: float) -> None:
    check_safetensors(small, tmp_path, edits, keep)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", [check_gguf, check_safetensors])
def test_thousands_of_damaged_files(small: Path, tmp_path: Path, check: Callable[..., None]) -> None:
    settings(FEW, max_examples=5000)(given(edits=EDITS, keep=KEEP)(lambda edits, keep: check(small, tmp_path, edits, keep)))()


@FEW
@given(name=st.sampled_from(["shape", "dtype", "data_offsets", None]), value=JSON)
def test_any_json_in_a_safetensors_header(small: Path, tmp_path: Path, name: str | None, value: object) -> None:
    entry = {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}
    header = json.dumps({"model.norm.weight": value if name is None else entry | {name: value}}).encode()
    shutil.copy(small / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 32)
    survives(tmp_path)


@FEW
@given(
    changes=st.dictionaries(st.sampled_from([*VALUES, "layer_types", "sliding_window", "use_sliding_window", "rope_parameters"]), JSON, max_size=3)
)
def test_any_json_in_a_config(tmp_path: Path, changes: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(VALUES | changes))
    survives(tmp_path, read_config)


@FEW
@given(
    family=st.sampled_from(["llama", "qwen2", "qwen3", "mistral"]),
    rope=st.dictionaries(st.sampled_from([*VALUES["rope_scaling"], "type", "rope_theta"]), JSON),
)
def test_any_json_in_the_rope_settings(tmp_path: Path, family: str, rope: dict[str, object]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(VALUES | {"model_type": family, "rope_scaling": rope}))
    survives(tmp_path, read_config)


@FEW
@given(
    raw=st.binary(max_size=200), name=st.sampled_from(["config.json", "generation_config.json", "model.safetensors.index.json", "model.safetensors"])
)
def test_any_bytes_in_any_file(small: Path, tmp_path: Path, raw: bytes, name: str) -> None:
    for file in tmp_path.iterdir():
        file.unlink()
    (tmp_path / "config.json").write_text(json.dumps(VALUES))
    (tmp_path / name).write_bytes(raw)
    survives(tmp_path)
    (tmp_path / "a.gguf").write_bytes(b"GGUF\3\0\0\0" + raw)
    survives(tmp_path / "a.gguf")
