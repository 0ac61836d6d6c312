"""Tensors of safetensors folders: single, sharded, tied and untied, broken; and the check against the config."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from checkpoint.config import read_config
from checkpoint.errors import CheckpointError
from checkpoint.safetensors_file import SafetensorsFile
from checkpoint.structs import ModelConfig, RopeConfig
from checkpoint.tensors import check_tensors, expected_tensors, ignored_tensors, is_harmless, open_tensors

CONFIG = ModelConfig(
    family="qwen3", hidden=8, layers=2, heads=4, kv_heads=2, head_dim=6, mlp=16, vocab=11, context=32, norm_eps=1e-6, rope=RopeConfig(),
    qk_norm=True, qkv_bias=True, output_bias=True, mlp_bias=True,
)  # fmt: skip
HEAD = "lm_head.weight"


def random_tensors(config: ModelConfig, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Every expected tensor with random values."""
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in expected_tensors(config).items()}


def write_shards(folder: Path, tensors: dict[str, NDArray[np.float32]], count: int = 3) -> dict[str, str]:
    """The tensors spread over shards with an index. Gives the weight map."""
    names = list(tensors)
    index: dict[str, str] = {}
    for part in range(count):
        file = f"model-{part + 1:05}-of-{count:05}.safetensors"
        save_file({name: tensors[name] for name in names[part::count]}, folder / file)
        index |= dict.fromkeys(names[part::count], file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return index


def raw_file(path: Path, header: object, data: bytes = b"\0" * 64) -> Path:
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_expected_tensors_of_everything() -> None:
    shapes = expected_tensors(CONFIG)
    assert len(shapes) == 3 + 2 * (9 + 7 + 2)
    assert shapes["model.layers.1.self_attn.q_proj.weight"] == (24, 8)
    assert shapes["model.layers.1.self_attn.k_proj.bias"] == (12,)
    assert shapes["model.layers.0.self_attn.o_proj.weight"] == (8, 24)
    assert shapes["model.layers.0.mlp.down_proj.bias"] == (8,)
    assert shapes["model.layers.0.self_attn.k_norm.weight"] == (6,)


@pytest.mark.parametrize("sharded", [False, True], ids=["single", "sharded"])
def test_reads_what_was_written(tmp_path: Path, sharded: bool) -> None:
    tensors = random_tensors(CONFIG)
    if sharded:
        write_shards(tmp_path, tensors)
    else:
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    source = open_tensors(tmp_path, CONFIG)
    assert check_tensors(source, CONFIG) == []
    found = {name: source.read(name) for name in source.names()}
    source.close()
    assert found.keys() == tensors.keys()
    for name, values in tensors.items():
        assert found[name].dtype == np.float32
        np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize(("kind", "dtype"), [("F16", np.float16), ("BF16", np.uint16)])
def test_small_dtypes_even_at_odd_offsets(tmp_path: Path, kind: str, dtype: type[np.generic]) -> None:
    values = np.arange(6, dtype=np.uint16).view(np.float16 if kind == "F16" else np.uint16)
    header = {"pad": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "x": {"dtype": kind, "shape": [2, 3], "data_offsets": [1, 13]}}
    raw_file(tmp_path / "model.safetensors", header, b"\0" + values.tobytes())
    source = open_tensors(tmp_path, CONFIG)
    read = source.read("x")
    assert (read.dtype, read.shape, read.flags.aligned) == (np.dtype(dtype), (2, 3), True)
    np.testing.assert_array_equal(read.reshape(-1), values)
    assert source.read_raw("x").data.tobytes() == values.tobytes()
    assert source.names()["x"].dtype == {"F16": "float16", "BF16": "bfloat16"}[kind]
    with pytest.raises(CheckpointError, match="U8"):
        source.read("pad")


def test_missing_shapes_and_dtypes_are_all_named(tmp_path: Path) -> None:
    tensors: dict[str, NDArray[Any]] = dict(random_tensors(CONFIG))
    del tensors["model.norm.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].T.copy()
    tensors["lm_head.weight"] = tensors["lm_head.weight"].astype(np.float64)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError) as caught:
        check_tensors(open_tensors(tmp_path, CONFIG), CONFIG)
    for words in (
        "missing: model.norm.weight, model.layers.1.mlp.up_proj.weight",
        "embed_tokens.weight has [8, 11] instead of [11, 8]",
        "lm_head.weight is F64",
    ):
        assert words in str(caught.value)


def test_unexpected_are_reported_and_harmless_ignored(tmp_path: Path) -> None:
    extras = ["model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq", "rotary_emb.inv_freq"]
    tensors = random_tensors(CONFIG) | {name: np.zeros(3, np.float32) for name in [*extras, "model.layers.2.mlp.up_proj.weight", "score.weight"]}
    save_file(tensors, tmp_path / "model.safetensors")
    source = open_tensors(tmp_path, CONFIG)
    assert check_tensors(source, CONFIG) == ["model.layers.2.mlp.up_proj.weight", "score.weight"]
    assert ignored_tensors(source, CONFIG) == sorted(extras)


@pytest.mark.parametrize(
    ("tied", "stored"), [(False, True), (True, False), (True, True), (False, False)], ids=["untied", "tied", "tied-stored", "lost"]
)
def test_tied_and_untied_heads(tmp_path: Path, models: Path, tied: bool, stored: bool) -> None:
    folder = models / "rand-byte"
    values = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": tied}
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = read_config(folder)
    source = open_tensors(folder, config)
    kept = {name: np.array(source.read(name)) for name in source.names() if stored or name != HEAD}
    save_file(kept, tmp_path / "model.safetensors")
    config = read_config(tmp_path)
    assert config.tied_head == tied
    source = open_tensors(tmp_path, config)
    if not tied and not stored:
        with pytest.raises(CheckpointError, match=r"missing: lm_head\.weight"):
            check_tensors(source, config)
        return
    assert check_tensors(source, config) == []
    assert (HEAD in expected_tensors(config)) == (not tied)
    assert ignored_tensors(source, config) == ([HEAD] if tied and stored else [])
    assert is_harmless(HEAD, config) == tied


def test_dtype_from_the_weights_when_the_config_has_none(tmp_path: Path) -> None:
    values = {
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 9,
        "max_position_embeddings": 9,
    }
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert read_config(tmp_path).dtype == "float32"
    write_shards(tmp_path, {"a": np.zeros(1, np.float32), "model.embed_tokens.weight": np.zeros((9, 8), np.float16)}, 2)
    assert read_config(tmp_path).dtype == "float16"


def test_folders_without_usable_weights(tmp_path: Path) -> None:
    def refused(words: str) -> None:
        with pytest.raises(CheckpointError, match=words):
            open_tensors(tmp_path, CONFIG)

    refused("no weights")
    (tmp_path / "pytorch_model.bin").touch()
    refused("convert them to safetensors")
    (tmp_path / "consolidated.safetensors").touch()
    refused(r"pickled|neither")
    index = write_shards(tmp_path, random_tensors(CONFIG))
    (tmp_path / "model-00002-of-00003.safetensors").unlink()
    refused(r"1 of 3 shards are missing: model-00002-of-00003\.safetensors")
    assert index


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/a.safetensors", "b/../../a.safetensors", "a\\b.safetensors", "config.json", "", 5, None])
def test_index_stays_inside_the_folder(tmp_path: Path, name: object) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(CheckpointError, match="in the same folder"):
        open_tensors(tmp_path, CONFIG)


def test_one_tensor_in_two_shards(tmp_path: Path) -> None:
    tensors = random_tensors(CONFIG)
    write_shards(tmp_path, tensors)
    save_file(tensors, tmp_path / "model-00003-of-00003.safetensors")
    with pytest.raises(CheckpointError, match="is in both"):
        open_tensors(tmp_path, CONFIG)


def test_index_that_names_what_a_shard_does_not_hold(tmp_path: Path) -> None:
    index = write_shards(tmp_path, random_tensors(CONFIG))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index | {"extra": "model-00001-of-00003.safetensors"}}))
    with pytest.raises(CheckpointError, match="'extra'"):
        open_tensors(tmp_path, CONFIG)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b'{"a":' * 50_000,
        {"x": 1},
        {"x": {"dtype": "F32", "shape": [2]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}},
        {"x": {"dtype": "F32", "shape": [-2, -1], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [60, 68]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]}},
        {"x": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}},
        {"x": {"dtype": "F32", "shape": [1 << 40, 1 << 40, 0], "data_offsets": [0, 0]}},
        {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "y": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}},
    ],
)
def test_damaged_headers(tmp_path: Path, header: object) -> None:
    with pytest.raises(CheckpointError):
        SafetensorsFile(raw_file(tmp_path / "x.safetensors", header))


@pytest.mark.parametrize("content", [b"", b"\0" * 9, b"\xff" * 64, (1 << 40).to_bytes(8, "little") + b"{}"])
def test_not_safetensors(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError):
        SafetensorsFile(tmp_path / "x.safetensors")


def test_empty_tensor(tmp_path: Path) -> None:
    file = SafetensorsFile(raw_file(tmp_path / "x.safetensors", {"x": {"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]}}, b""))
    assert file.read("x").shape == (0, 3)
