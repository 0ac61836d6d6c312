"""config.json and generation_config.json: families, defaults, rope in all its places, windows, end tokens, and refusals."""

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoint.config import ModelConfig, RopeConfig, read_config
from checkpoint.errors import CheckpointError
from checkpoint.sampling import sampling_defaults

BASE: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 320, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "eos_token_id": 2, "torch_dtype": "bfloat16",
}  # fmt: skip


def config_of(folder: Path, *without: str, generation: object = None, **changes: Any) -> ModelConfig:
    """The configuration of BASE with some keys changed and some left out."""
    values = {key: value for key, value in (BASE | changes).items() if key not in without}
    (folder / "config.json").write_text(json.dumps(values))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_config(folder)


def test_llama(tmp_path: Path) -> None:
    assert config_of(tmp_path) == ModelConfig(
        family="llama", hidden=64, layers=4, heads=4, kv_heads=2, head_dim=16, mlp=96, vocab=320, context=2048, norm_eps=1e-5,
        rope=RopeConfig(), dtype="bfloat16", end_ids=[2],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "bias"),
    [
        ({}, (False, False, False)),
        ({"attention_bias": True, "mlp_bias": True}, (True, True, True)),
        ({"model_type": "qwen2"}, (True, False, False)),
        ({"model_type": "qwen3", "head_dim": 16}, (False, False, False)),
        ({"model_type": "qwen3", "attention_bias": True}, (True, True, False)),
        ({"model_type": "mistral", "attention_bias": True}, (False, False, False)),
    ],
    ids=["llama", "llama-bias", "qwen2", "qwen3", "qwen3-bias", "mistral"],
)
def test_biases(tmp_path: Path, changes: dict[str, Any], bias: tuple[bool, bool, bool]) -> None:
    config = config_of(tmp_path, **changes)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == bias
    assert config.qk_norm == (config.family == "qwen3")


def test_head_sizes(tmp_path: Path) -> None:
    assert config_of(tmp_path, head_dim=32).head_dim == 32
    assert config_of(tmp_path, head_dim=None).head_dim == 16
    assert config_of(tmp_path, model_type="qwen3").head_dim == 128
    assert config_of(tmp_path, "num_key_value_heads").kv_heads == 4
    assert config_of(tmp_path, num_key_value_heads=None).kv_heads == 4
    assert config_of(tmp_path, num_attention_heads=3, num_key_value_heads=1, head_dim=30).heads == 3


def test_dtype_names(tmp_path: Path) -> None:
    assert config_of(tmp_path, dtype="float16").dtype == "float16"
    assert config_of(tmp_path, torch_dtype="torch.float32").dtype == "float32"
    assert config_of(tmp_path, "torch_dtype").dtype == "float32"


THETA = 1e6


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({"rope_theta": THETA}, THETA),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": THETA}}, THETA),
        ({"rope_theta": THETA, "rope_parameters": {"rope_type": "default", "rope_theta": THETA}}, THETA),
        ({"rope_theta": 5e5, "rope_parameters": {"rope_type": "default", "rope_theta": THETA}}, THETA),
        ({}, 1e4),
        ({"rope_theta": THETA, "rope_scaling": None}, THETA),
        ({"rope_theta": THETA, "rope_scaling": {"type": "default"}}, THETA),
        ({"rope_theta": THETA, "rope_scaling": {}}, THETA),
        ({"rope_theta": 500000, "rope_parameters": None}, 5e5),
    ],
    ids=["top", "inside", "equal", "conflict", "neither", "scaling-null", "scaling-default", "scaling-empty", "whole-number"],
)
def test_place_of_theta(tmp_path: Path, changes: dict[str, Any], theta: float) -> None:
    assert config_of(tmp_path, **changes).rope == RopeConfig(theta=theta)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("table", "rope", "context"),
    [
        (LLAMA3, RopeConfig(kind="llama3", factor=8.0, original_context=512, low_freq_factor=1.0, high_freq_factor=4.0), 2048),
        ({"type": "linear", "factor": 2}, RopeConfig(kind="linear", factor=2.0), 4096),
        ({"type": "dynamic", "factor": 4.0}, RopeConfig(kind="dynamic", factor=4.0, original_context=2048), 8192),
        ({"type": "yarn", "factor": 4.0}, RopeConfig(kind="yarn", factor=4.0, original_context=2048), 8192),
        ({"rope_type": "yarn", "original_max_position_embeddings": 512}, RopeConfig(kind="yarn", factor=4.0, original_context=512), 2048),
        (
            {
                "rope_type": "yarn",
                "type": "linear",
                "factor": 4.0,
                "beta_fast": 16,
                "beta_slow": None,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
                "truncate": False,
            },
            RopeConfig(kind="yarn", factor=4.0, original_context=2048, beta_fast=16.0, mscale=1.0, mscale_all_dim=0.5, truncate=False),
            8192,
        ),
    ],
    ids=["llama3", "linear", "dynamic", "yarn", "yarn-without-factor", "yarn-all"],
)
def test_rope_kinds(tmp_path: Path, place: str, table: dict[str, Any], rope: RopeConfig, context: int) -> None:
    config = config_of(tmp_path, **{place: table})
    assert config.rope == rope
    assert config.context == context


def test_original_context_at_the_top_goes_first(tmp_path: Path) -> None:
    assert config_of(tmp_path, original_max_position_embeddings=1024, rope_scaling=LLAMA3).rope.original_context == 1024


def test_both_rope_tables(tmp_path: Path) -> None:
    assert config_of(tmp_path, rope_scaling=LLAMA3, rope_parameters=LLAMA3).rope.kind == "llama3"
    with pytest.raises(CheckpointError, match="contradict"):
        config_of(tmp_path, rope_scaling={"type": "default"}, rope_parameters={"rope_type": "default", "rope_theta": THETA})


@pytest.mark.parametrize(
    ("changes", "window", "layers"),
    [
        ({"model_type": "mistral", "sliding_window": 64}, 64, [True] * 4),
        ({"model_type": "mistral", "sliding_window": None}, None, []),
        ({"model_type": "mistral", "sliding_window": 4096}, 4096, [True] * 4),
        ({"model_type": "mistral"}, 4096, [True] * 4),
        ({"model_type": "llama", "sliding_window": 64}, None, []),
        ({"model_type": "qwen2", "sliding_window": 64}, None, []),
        ({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 64, "max_window_layers": 0}, None, []),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}, 64, [False, False, False, True]),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64}, None, []),
        ({"model_type": "qwen3", "use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, None, []),
        (
            {"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2},
            8,
            [True, False, True, False],
        ),
    ],
)
def test_windows(tmp_path: Path, changes: dict[str, Any], window: int | None, layers: list[bool]) -> None:
    config = config_of(tmp_path, num_key_value_heads=2, **changes)
    assert (config.window, config.window_layers) == (window, layers)


@pytest.mark.parametrize(
    ("eos", "generation", "ends"),
    [
        (2, None, [2]),
        ([2, 3], None, [2, 3]),
        (None, {"eos_token_id": [2, 3]}, [2, 3]),
        (2, {"eos_token_id": 3}, [2, 3]),
        ([3, 2], {"eos_token_id": [2, 3, 4]}, [3, 2, 4]),
        (2, {}, [2]),
        (None, {"eos_token_id": None}, []),
    ],
)
def test_end_tokens_are_united(tmp_path: Path, eos: object, generation: object, ends: list[int]) -> None:
    assert config_of(tmp_path, eos_token_id=eos, generation=generation).end_ids == ends


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gemma2"}, "llama, qwen2, qwen3, mistral"),
        ({"model_type": None}, "llama, qwen2, qwen3, mistral"),
        ({"num_local_experts": 8}, "mixture-of-experts"),
        ({"quantization_config": {"quant_method": "gptq"}}, "GGUF"),
        ({"hidden_act": "gelu"}, "silu"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": True}, "hidden_size"),
        ({"hidden_size": 1e300}, "hidden_size"),
        ({"hidden_size": 10**400}, "hidden_size"),
        ({"hidden_size": 65}, "multiple of num_attention_heads"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "divisor"),
        ({"num_key_value_heads": 8}, "num_key_value_heads"),
        ({"head_dim": 15}, "even"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers"),
        ({"vocab_size": 0}, "vocab_size"),
        ({"max_position_embeddings": None}, "is missing"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps"),
        ({"torch_dtype": "int8"}, "float32, bfloat16, float16"),
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": "1e6"}, "rope_theta"),
        ({"rope_scaling": {"type": "longrope", "factor": 4}}, "default, linear, llama3, yarn, dynamic"),
        ({"rope_scaling": {"type": "linear"}}, "factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "factor"),
        ({"rope_scaling": ["linear"]}, "rope_scaling"),
        ({"rope_scaling": LLAMA3 | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "per layer type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window"),
        ({"model_type": "mistral", "layer_types": ["full_attention"] * 4}, "layer_types"),
        ({"model_type": "qwen2", "use_sliding_window": "yes"}, "use_sliding_window"),
        ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "layer_types"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings"),
        ({"eos_token_id": 320}, "eos_token_id"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id"),
        ({"eos_token_id": True}, "eos_token_id"),
    ],
)
def test_refusals(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words) as caught:
        config_of(tmp_path, **changes)
    assert str(tmp_path / "config.json") in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b'{"a":' * 100_000, b"NaN"], ids=["empty", "cut", "list", "bytes", "deep", "nan"])
def test_bad_json(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError):
        read_config(tmp_path)


def test_bad_generation_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        config_of(tmp_path, generation={"eos_token_id": -1})


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        read_config(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_config(tmp_path)
    (tmp_path / "a.gguf").touch()
    with pytest.raises(CheckpointError, match=r"name it itself, such as .*a\.gguf"):
        read_config(tmp_path)


def test_sampling_defaults(tmp_path: Path) -> None:
    assert sampling_defaults(tmp_path) == {}
    file = tmp_path / "generation_config.json"
    file.write_text('{"do_sample": false, "temperature": 0.6, "top_p": null, "top_k": 20, "eos_token_id": 5}')
    assert sampling_defaults(tmp_path) == {"temperature": 0.6, "top_k": 20}
    for bad in ('{"temperature": -1}', '{"top_p": "a"}', '{"top_k": 1.5}', '{"min_p": 2}', '{"repetition_penalty": 0}'):
        file.write_text(bad)
        with pytest.raises(CheckpointError, match=r"generation_config\.json"):
            sampling_defaults(tmp_path)
    assert sampling_defaults(tmp_path / "model.gguf") == {}
