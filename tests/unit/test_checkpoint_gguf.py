"""GGUF: the header, the metadata as a config, the tensors of every kind against the safetensors twin, and refusals."""

import json
import re
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from checkpoint.config import RopeConfig, read_config
from checkpoint.config_gguf import llama3_factors, with_factors
from checkpoint.errors import CheckpointError
from checkpoint.gguf_file import read_header
from checkpoint.gguf_kinds import KINDS
from checkpoint.gguf_tensors import GgufTensors, hf_name
from checkpoint.tensors import check_tensors, open_tensors
from tests.support.gguf_files import write_twin

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE = {"F32": 0.0, "F16": 5e-4, "BF16": 4e-3, "Q8_0": 5e-3, "Q4_0": 0.1, "Q4_1": 0.07, "Q4_K": 0.07, "Q6_K": 0.02}
STRING = 8


def text(value: str) -> bytes:
    """A GGUF string."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, code: int, value: bytes) -> bytes:
    """A GGUF key-value pair."""
    return text(key) + struct.pack("<I", code) + value


def header_bytes(*pairs: bytes, tensors: tuple[bytes, ...] = (), version: int = 3, counts: tuple[int, int] | None = None) -> bytes:
    """A GGUF file by hand, with room for 64 bytes of data."""
    numbers = counts or (len(tensors), len(pairs))
    raw = b"GGUF" + struct.pack("<IQQ", version, *numbers) + b"".join(pairs) + b"".join(tensors)
    return raw + b"\0" * (-len(raw) % 32 + 64)


def tensor(name: str, shape: tuple[int, ...], code: int = 0, offset: int = 0) -> bytes:
    """An entry of the tensor table; `shape` in GGUF order."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, code, offset)


def floats(values: NDArray[np.generic], dtype: str) -> NDArray[np.float32]:
    """Values read from a TensorSource as float32."""
    return (values.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else values.astype(np.float32)


@pytest.mark.parametrize("version", [2, 3])
def test_header_by_hand(tmp_path: Path, version: int) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(
        header_bytes(
            pair("u8", 0, b"\xff"),
            pair("i8", 1, b"\xff"), pair("f32", 6, struct.pack("<f", 0.5)), pair("yes", 7, b"\1"), pair("s", STRING, text("é")),
            pair("u64", 10, struct.pack("<Q", 1 << 63)), pair("f64", 12, struct.pack("<d", 0.1)),
            pair("words", 9, struct.pack("<IQ", STRING, 2) + text("a") + text("")), pair("ints", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
            pair("flags", 9, struct.pack("<IQ", 7, 2) + b"\1\0"),
            pair("nested", 9, struct.pack("<IQ", 9, 2) + (struct.pack("<IQ", STRING, 1) + text("x")) * 2),
            tensors=(tensor("w", (8, 1)), tensor("v", (4,), offset=32)),
            version=version,
        )
    )  # fmt: skip
    header = read_header(path)
    plain = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in header.metadata.items()}
    assert plain == {
        "u8": 255, "i8": -1, "f32": 0.5, "yes": True, "s": "é", "u64": 1 << 63, "f64": 0.1, "words": ["a", ""], "ints": [1, -2, 3],
        "flags": [True, False], "nested": [["x"], ["x"]],
    }  # fmt: skip
    assert (header.version, header.tensors["w"].shape, header.tensors["v"].shape) == (version, (1, 8), (4,))
    assert (header.tensors["w"].nbytes, header.tensors["v"].offset - header.tensors["w"].offset) == (32, 32)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"GGUF", "ends too early"),
        (b"\x80\x02pickled" * 9, "not a GGUF file"),
        (header_bytes(version=1), "version 1"),
        (header_bytes(version=3 << 24), "big-endian"),
        (header_bytes(counts=(1 << 62, 0)), "tensor count"),
        (header_bytes(counts=(0, 1 << 40)), "metadata count"),
        (header_bytes(struct.pack("<Q", 1 << 63), counts=(0, 1)), "a name of"),
        (header_bytes(pair("k", STRING, struct.pack("<Q", 1 << 60))), "ends too early"),
        (header_bytes(pair("k", 9, struct.pack("<IQ", 4, 1 << 61))), "array count"),
        (header_bytes(pair("k", 9, struct.pack("<IQ", STRING, 1 << 20))), "string count"),
        (header_bytes(pair("k", 9, struct.pack("<IQQ", STRING, 1, 1 << 50))), "past the end"),
        (header_bytes(pair("k", 9, struct.pack("<IQ", 9, 1) * 12)), "nested too deeply"),
        (header_bytes(pair("k", 99, b"")), "unknown value type 99"),
        (header_bytes(pair("k", 9, struct.pack("<IQ", 77, 0))), "unknown array type 77"),
        (header_bytes(pair("k", 0, b"\1"), pair("k", 0, b"\1")), "appears twice"),
        (header_bytes(pair("k", STRING, struct.pack("<Q", 1) + b"\xff")), "UTF-8"),
        (header_bytes(pair("k", 9, struct.pack("<IQQ", STRING, 1, 1) + b"\xff")), "UTF-8"),
        (header_bytes(pair("general.alignment", 4, struct.pack("<I", 0))), "power of two"),
        (header_bytes(pair("general.alignment", 4, struct.pack("<I", 24))), "power of two"),
        (header_bytes(pair("split.count", 2, struct.pack("<H", 3))), "llama-gguf-split --merge"),
        (header_bytes(tensors=(tensor("w", ()),)), "0 dimensions"),
        (header_bytes(tensors=(tensor("w", (1,) * 5),)), "5 dimensions"),
        (header_bytes(tensors=(tensor("w", (0, 4)),)), "impossible shape"),
        (header_bytes(tensors=(tensor("w", (1 << 40, 1 << 40)),)), "impossible shape"),
        (header_bytes(tensors=(tensor("w", (8,), code=4),)), "unknown type 4"),
        (header_bytes(tensors=(tensor("w", (8,), code=8),)), "not whole Q8_0 blocks"),
        (header_bytes(tensors=(tensor("w", (17,)),)), "past the end"),
        (header_bytes(tensors=(tensor("w", (4,), offset=8),)), "not aligned"),
        (header_bytes(tensors=(tensor("w", (4,), offset=(1 << 64) - 32),)), "past the end"),
        (header_bytes(tensors=(tensor("w", (4,)), tensor("w", (4,)))), "appears twice"),
    ],
)
def test_damaged_headers(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    started = time.process_time()
    with pytest.raises(CheckpointError, match=words) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    assert time.process_time() - started < 1.0


def test_kinds_agree_with_the_gguf_package() -> None:
    sizes = {kind.value: (kind.name, *size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert {number: tuple(kind) for number, kind in KINDS.items()}.items() <= sizes.items()


@pytest.mark.parametrize("kind", TOLERANCE)
def test_twin_of_every_kind(tmp_path: Path, models: Path, kind: str) -> None:
    folder = models / "rand-byte"
    original = read_config(folder)
    path = write_twin(folder, tmp_path / "twin.gguf", kind=kind)
    config = read_config(path)
    source, wanted = open_tensors(path, config), open_tensors(folder, original)
    assert check_tensors(source, config) == []
    assert source.names().keys() == wanted.names().keys()
    for name, info in source.names().items():
        values, expected = floats(source.read(name), info.dtype), floats(wanted.read(name), "float32")
        assert values.shape == expected.shape == info.shape
        assert np.abs(values - expected).max() <= TOLERANCE[kind] * np.abs(expected).max(), name
    assert config.dtype == {"F16": "float16", "BF16": "bfloat16"}.get(kind, "float32")
    assert config.norm_eps == pytest.approx(original.norm_eps)
    assert (config.heads, config.head_dim, config.context, config.end_ids) == (original.heads, original.head_dim, original.context, original.end_ids)


@pytest.mark.parametrize("kind", ["Q4_1", "Q6_K", "F16"])
def test_raw_rows_have_the_order_of_read(tmp_path: Path, models: Path, kind: str) -> None:
    path = write_twin(models / "rand-byte", tmp_path / "twin.gguf", kind=kind)
    source = open_tensors(path, read_config(path))
    for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.up_proj.weight", "model.norm.weight"):
        raw, values = source.read_raw(name), source.read(name)
        again = gguf.quants.dequantize(raw.data, gguf.GGMLQuantizationType[raw.kind])
        np.testing.assert_array_equal(again.reshape(raw.shape), values.astype(np.float32))


@pytest.mark.parametrize("kind", ["Q5_0", "Q5_1"])
def test_other_kinds_are_refused_with_the_list(tmp_path: Path, models: Path, kind: str) -> None:
    path = write_twin(models / "rand-byte", tmp_path / "twin.gguf", kind=kind)
    with pytest.raises(CheckpointError, match=f"stored as {kind}.*F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K"):
        open_tensors(path, read_config(path))


def changed_folder(models: Path, target: Path, **changes: Any) -> Path:
    """A copy of rand-byte with changes to its config.json."""
    target.mkdir()
    for file in (models / "rand-byte").iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    values = json.loads((target / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(values))
    return target


def test_tied_head(tmp_path: Path, models: Path) -> None:
    path = write_twin(changed_folder(models, tmp_path / "tied", tie_word_embeddings=True), tmp_path / "tied.gguf")
    config = read_config(path)
    assert config.tied_head
    assert check_tensors(open_tensors(path, config), config) == []


def test_qwen_rows_are_not_reordered(tmp_path: Path, models: Path) -> None:
    folder = changed_folder(models, tmp_path / "qwen", model_type="qwen2")
    path = write_twin(folder, tmp_path / "qwen.gguf")
    config = read_config(path)
    assert (config.family, config.qkv_bias) == ("qwen2", False)
    name = "model.layers.0.self_attn.q_proj.weight"
    np.testing.assert_array_equal(open_tensors(path, config).read(name), open_tensors(folder, read_config(folder)).read(name))


def test_names() -> None:
    assert hf_name("token_embd.weight") == "model.embed_tokens.weight"
    assert hf_name("blk.12.attn_q_norm.weight") == "model.layers.12.self_attn.q_norm.weight"
    assert hf_name("blk.0.attn_output.bias") == "model.layers.0.self_attn.o_proj.bias"
    for odd in ("blk.01.attn_q.weight", "blk.0.ffn_gate_exps.weight", "rope_freqs.weight", "output", "blk.0.output.weight"):
        assert hf_name(odd) == odd


@pytest.mark.parametrize(
    ("extra", "rope"),
    [
        ({}, RopeConfig()),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, RopeConfig()),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, RopeConfig(kind="linear", factor=4.0)),
        ({"llama.rope.scale_linear": 2.0}, RopeConfig(kind="linear", factor=2.0)),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.original_context_length": 512},
            RopeConfig(kind="yarn", factor=4.0, original_context=512),
        ),
    ],
    ids=["default", "none", "linear", "old-linear", "yarn"],
)
def test_rope_metadata(tmp_path: Path, models: Path, extra: dict[str, Any], rope: RopeConfig) -> None:
    assert read_config(write_twin(models / "dice-byte", tmp_path / "a.gguf", extra=extra)).rope == rope


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4.0}, "none, linear or yarn"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0, "llama.rope.scaling.attn_factor": 2.0}, "attn_factor"),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 0.5}, "at least 1"),
        ({"llama.expert_count": 8}, "mixture-of-experts"),
        ({"llama.attention.sliding_window": 64, "llama.attention.sliding_window_pattern": 2}, "some layers"),
    ],
)
def test_metadata_that_is_refused(tmp_path: Path, models: Path, extra: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read_config(write_twin(models / "dice-byte", tmp_path / "a.gguf", extra=extra))


def test_window_of_the_llama_architecture(tmp_path: Path, models: Path) -> None:
    config = read_config(write_twin(models / "dice-byte", tmp_path / "a.gguf", extra={"llama.attention.sliding_window": 64}))
    assert (config.window, config.window_layers) == (64, [True, True])


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({}, [293, 294]),
        ({"eot": False}, [293]),
        ({"eos": False}, [294]),
        ({"eos": False, "eot": False}, []),
        ({"add_bos": None, "bos": False}, [293, 294]),
    ],
    ids=["both", "eos", "eot", "none", "no-bos"],
)
def test_end_tokens(tmp_path: Path, models: Path, options: dict[str, Any], ends: list[int]) -> None:
    assert read_config(write_twin(models / "dice-byte", tmp_path / "a.gguf", **options)).end_ids == ends


def test_eom_is_an_end_token(tmp_path: Path, models: Path) -> None:
    path = write_twin(models / "dice-byte", tmp_path / "a.gguf", extra={"tokenizer.ggml.eom_token_id": 295})
    assert read_config(path).end_ids == [293, 294, 295]


@pytest.mark.parametrize(("factor", "original", "head_dim"), [(8.0, 8192, 128), (32.0, 8192, 64)], ids=["llama-3.1", "llama-3.2"])
def test_llama3_settings_from_stored_factors(factor: float, original: int, head_dim: int) -> None:
    rope = RopeConfig(theta=500_000.0, kind="llama3", factor=factor, original_context=original)
    stored = llama3_factors(rope, head_dim).astype(np.float32)
    assert stored.min() == 1.0
    assert with_factors(RopeConfig(theta=500_000.0), stored, head_dim, "x") == rope
    assert with_factors(RopeConfig(), np.ones(head_dim // 2, np.float32), head_dim, "x") == RopeConfig()
    for wrong in (stored[:-1], stored[::-1], stored * np.nan, stored * 0):
        with pytest.raises(CheckpointError, match="rope_freqs"):
            with_factors(RopeConfig(theta=500_000.0), wrong, head_dim, "x")


def test_large_vocabulary_is_read_fast(tmp_path: Path) -> None:
    words = [text(f"tok{number}") for number in range(150_000)]
    path = tmp_path / "a.gguf"
    block = struct.pack("<IQ", STRING, len(words)) + b"".join(words)
    path.write_bytes(header_bytes(pair("tokenizer.ggml.tokens", 9, block), pair("tokenizer.ggml.merges", 9, block)))
    started = time.process_time()
    assert len(read_header(path).metadata) == 2
    assert time.process_time() - started < 1.0


def test_two_tensors_for_one_name(tmp_path: Path, models: Path) -> None:
    config = read_config(models / "dice-byte")
    path = tmp_path / "a.gguf"
    path.write_bytes(header_bytes(tensors=(tensor("output.weight", (4,)), tensor("lm_head.weight", (4,)))))
    with pytest.raises(CheckpointError, match="two tensors"):
        GgufTensors(path, config)


def test_reading_a_header_imports_neither_gguf_nor_torch(tmp_path: Path, models: Path) -> None:
    path = write_twin(models / "dice-byte", tmp_path / "a.gguf")
    code = "import sys, pathlib; from checkpoint.config import read_config; read_config(pathlib.Path(sys.argv[1])); print(list(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert "'numpy'" in done.stdout
    assert not {"'gguf'", "'torch'", "'transformers'"} & set(re.findall(r"'\w+'", done.stdout))
