"""The tensors of a checkpoint under one set of names (those of Hugging Face), whatever the format; and the check that they are the right ones."""

import re
from pathlib import Path

from checkpoint.errors import CheckpointError
from checkpoint.gguf_tensors import GgufTensors
from checkpoint.safetensors_tensors import SafetensorsTensors
from checkpoint.source import RawTensor, TensorInfo, TensorSource
from checkpoint.structs import ModelConfig

__all__ = ["RawTensor", "TensorInfo", "TensorSource", "check_tensors", "expected_tensors", "ignored_tensors", "is_harmless", "open_tensors"]

FLOATS = ("float32", "float16", "bfloat16")
SHOWN = 40
HARMLESS = re.compile(r"rope_freqs\.weight|(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)")


def open_tensors(path: Path, config: ModelConfig) -> TensorSource:
    """Opens the tensors of the folder or .gguf file that `config` was read from. Raises CheckpointError."""
    return SafetensorsTensors(path) if path.is_dir() else GgufTensors(path, config)


def layer_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Names (without the layer's prefix) and shapes of one decoder layer."""
    hidden, mlp = config.hidden, config.mlp
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (mlp, hidden),
        "mlp.up_proj.weight": (mlp, hidden),
        "mlp.down_proj.weight": (hidden, mlp),
    }
    biased = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"] if config.qkv_bias else []
    biased += ["self_attn.o_proj"] if config.output_bias else []
    biased += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"] if config.mlp_bias else []
    shapes |= {f"{name}.bias": shapes[f"{name}.weight"][:1] for name in biased}
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return shapes


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor that the decoder needs, with its shape; lm_head only when the head is not tied to the embedding."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab, config.hidden), "model.norm.weight": (config.hidden,)}
    if not config.tied_head:
        found["lm_head.weight"] = (config.vocab, config.hidden)
    layer = layer_tensors(config)
    return found | {f"model.layers.{number}.{name}": shape for number in range(config.layers) for name, shape in layer.items()}


def listing(names: list[str]) -> str:
    """Names for an error message; the rest is counted when there are very many."""
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest


def is_harmless(name: str, config: ModelConfig) -> bool:
    """Whether a tensor that the decoder does not use may be left out in silence: rotary buffers, and a stored head when the head is tied."""
    return HARMLESS.fullmatch(name) is not None or (config.tied_head and name == "lm_head.weight")


def check_tensors(source: TensorSource, config: ModelConfig) -> list[str]:
    """The names of tensors that the decoder does not use, harmless ones (see `is_harmless`) left out.

    Raises CheckpointError naming every missing tensor and every one with a wrong shape or a dtype that cannot be read.
    """
    there, expected = source.names(), expected_tensors(config)
    problems = []
    if missing := [name for name in expected if name not in there]:
        problems.append(f"missing: {listing(missing)}")
    found = {name: there[name] for name in expected if name in there}
    if shapes := [f"{name} has {list(info.shape)} instead of {list(expected[name])}" for name, info in found.items() if info.shape != expected[name]]:
        problems.append(f"wrong shape: {listing(shapes)}")
    if kinds := [f"{name} is {info.dtype}" for name, info in found.items() if info.dtype not in FLOATS]:
        problems.append(f"dtype that cannot be read: {listing(kinds)}")
    if problems:
        raise CheckpointError(f"the tensors do not fit the config ({'; '.join(problems)}); is the checkpoint complete?")
    return sorted(name for name in there if name not in expected and not is_harmless(name, config))


def ignored_tensors(source: TensorSource, config: ModelConfig) -> list[str]:
    """The names of harmless extras in the checkpoint."""
    return sorted(name for name in source.names() if is_harmless(name, config))
