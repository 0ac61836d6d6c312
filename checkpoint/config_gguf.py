"""The model's description from the metadata and the tensor table of a GGUF file."""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from checkpoint.config_json import MAX_LAYERS, MAX_SIZE, MAX_VOCAB
from checkpoint.errors import CheckpointError
from checkpoint.fields import Fields
from checkpoint.gguf_file import GgufHeader, map_file, parse_header
from checkpoint.rope import FACTOR_LIMITS, MAX_CONTEXT, THETA_LIMITS, scaled_context
from checkpoint.structs import ModelConfig, RopeConfig

ARCHITECTURES = ("llama", "qwen2", "qwen3")
END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
ROPE_FACTORS = "rope_freqs.weight"


def architecture_of(fields: Fields) -> str:
    """The architecture. Raises CheckpointError for one that is not supported and for mixture-of-experts models."""
    name = fields.text("general.architecture")
    if name not in ARCHITECTURES:
        raise fields.fail("general.architecture", f"one of {', '.join(ARCHITECTURES)}: others are not supported")
    if fields.integer(f"{name}.expert_count", 0, 1 << 20, 0):
        raise fields.fail(f"{name}.expert_count", "nothing: mixture-of-experts models are not supported")
    return name


def uniform(fields: Fields, key: str, low: int, high: int, default: int | None = None) -> int:
    """A whole number, also when the file gives one per layer and all are equal."""
    value = fields.get(key)
    if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
        return Fields({key: value[0].item()}, fields.source).integer(key, low, high)
    return fields.integer(key, low, high, default)


def head_sizes(fields: Fields, arch: str, hidden: int) -> tuple[int, int, int]:
    """(heads, kv_heads, head_dim), each fitting the others."""
    heads = uniform(fields, f"{arch}.attention.head_count", 1, 4096)
    kv_heads = uniform(fields, f"{arch}.attention.head_count_kv", 1, heads, heads)
    if heads % kv_heads:
        raise fields.fail(f"{arch}.attention.head_count_kv", f"a divisor of {heads} heads")
    key = f"{arch}.attention.key_length"
    if not fields.has(key) and hidden % heads:
        raise fields.fail(f"{arch}.embedding_length", f"a multiple of {heads} heads")
    head_dim = fields.integer(key, 2, 4096, hidden // heads)
    for other in (f"{arch}.attention.value_length", f"{arch}.rope.dimension_count"):
        if fields.integer(other, 1, 4096, head_dim) != head_dim:
            raise fields.fail(other, f"{head_dim}, the size of a head")
    if head_dim % 2:
        raise fields.fail(key, "an even number")
    return heads, kv_heads, head_dim


def read_rope(fields: Fields, arch: str, context: int) -> RopeConfig:
    """The rotary settings in the metadata."""
    theta = fields.number(f"{arch}.rope.freq_base", *THETA_LIMITS, default=10_000.0)
    key = f"{arch}.rope.scaling.type"
    old = fields.number(f"{arch}.rope.scale_linear", *FACTOR_LIMITS, default=1.0)
    kind = fields.text(key, "linear" if old != 1.0 else "none")
    factor = fields.number(f"{arch}.rope.scaling.factor", 0.0, FACTOR_LIMITS[1], default=old)
    if kind not in ("none", "linear", "yarn"):
        raise fields.fail(key, "none, linear or yarn: other rope types are not supported")
    if kind == "none" or factor in (0.0, 1.0):
        return RopeConfig(theta=theta)
    if factor < 1.0:
        raise fields.fail(f"{arch}.rope.scaling.factor", "at least 1")
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=factor)
    prefix = f"{arch}.rope.scaling"
    for name, usual in (("attn_factor", 1.0), ("yarn_attn_factor", 1.0), ("yarn_ext_factor", 1.0)):
        if fields.number(f"{prefix}.{name}", -1e6, 1e6, default=usual) not in (usual, -1.0):
            raise fields.fail(f"{prefix}.{name}", f"{usual:g}: other values are not supported")
    return RopeConfig(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_context=fields.integer(f"{prefix}.original_context_length", 1, MAX_CONTEXT, context),
        beta_fast=fields.number(f"{prefix}.yarn_beta_fast", 1e-6, 1e6, default=32.0),
        beta_slow=fields.number(f"{prefix}.yarn_beta_slow", 1e-6, 1e6, default=1.0),
    )


def llama3_factors(rope: RopeConfig, head_dim: int) -> NDArray[np.float64]:
    """What llama3 scaling divides each inverse frequency by, shape [head_dim / 2]."""
    wavelength = 2 * math.pi * rope.theta ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = (rope.original_context / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = np.clip(smooth, 0.0, 1.0)
    factors: NDArray[np.float64] = 1.0 / ((1.0 - smooth) / rope.factor + smooth)
    return factors


def with_factors(rope: RopeConfig, stored: NDArray[np.float32], head_dim: int, source: str) -> RopeConfig:
    """The llama3 settings behind the stored divisors of the frequencies (Llama 3.1 and later keep only those in GGUF)."""
    if stored.shape != (head_dim // 2,) or not np.isfinite(stored).all() or not 1.0 <= stored.max() <= FACTOR_LIMITS[1] or rope.kind != "default":
        raise CheckpointError(f"{source}: {ROPE_FACTORS} does not fit the heads of {head_dim} values or the other rope settings")
    if np.allclose(stored, 1.0):
        return rope
    for original in (8192, 4096, 16384, 32768, 131072):
        found = RopeConfig(theta=rope.theta, kind="llama3", factor=float(stored.max()), original_context=original)
        if np.allclose(llama3_factors(found, head_dim), stored, rtol=1e-3):
            return found
    raise CheckpointError(f"{source}: the rope factors in {ROPE_FACTORS} are not those of Llama 3 scaling, which is the only kind supported")


def stored_factors(data: memoryview, header: GgufHeader, source: str) -> NDArray[np.float32] | None:
    """The values of rope_freqs.weight, None when the file has no such tensor."""
    info = header.tensors.get(ROPE_FACTORS)
    if info is None:
        return None
    if info.kind != "F32":
        raise CheckpointError(f"{source}: {ROPE_FACTORS} is stored as {info.kind}; expected F32")
    return np.frombuffer(bytes(data[info.offset : info.offset + info.nbytes]), "<f4").reshape(info.shape)


def dtype_of(header: GgufHeader) -> str:
    """The dtype of the weights: that of the embedding, float32 when it is quantised."""
    info = header.tensors.get("blk.0.attn_q.weight") or header.tensors.get("token_embd.weight")
    return {"F16": "float16", "BF16": "bfloat16"}.get(info.kind if info else "", "float32")


def vocab_of(header: GgufHeader, source: str) -> int:
    """The number of rows of the embedding."""
    info = header.tensors.get("token_embd.weight")
    if info is None or len(info.shape) != 2 or info.shape[0] > MAX_VOCAB:
        raise CheckpointError(f"{source}: there is no usable token_embd.weight; this GGUF file holds no language model")
    return info.shape[0]


def window_of(fields: Fields, arch: str, context: int) -> int | None:
    """The sliding window in tokens, None without one. Mistral's uses the llama architecture; Qwen files do not say which layers use it."""
    key = f"{arch}.attention.sliding_window"
    window = fields.integer(key, 0, MAX_CONTEXT, 0)
    if window and fields.has(f"{key}_pattern"):
        raise fields.fail(f"{key}_pattern", "nothing: a window in some layers only is not supported in GGUF")
    if arch != "llama" and 0 < window < context:
        raise fields.fail(key, f"nothing, or at least the context ({context})")
    return window if arch == "llama" and window else None


def describe(header: GgufHeader, rope_factors: NDArray[np.float32] | None, source: str) -> ModelConfig:
    """The configuration from a header and the values of rope_freqs.weight (None when absent)."""
    fields = Fields(header.metadata, source)
    arch = architecture_of(fields)
    hidden = fields.integer(f"{arch}.embedding_length", 1, MAX_SIZE)
    layers = fields.integer(f"{arch}.block_count", 1, MAX_LAYERS)
    heads, kv_heads, head_dim = head_sizes(fields, arch, hidden)
    context = fields.integer(f"{arch}.context_length", 1, MAX_CONTEXT)
    rope = read_rope(fields, arch, context)
    if rope_factors is not None:
        rope = with_factors(rope, rope_factors, head_dim, source)
    vocab = vocab_of(header, source)
    window = window_of(fields, arch, context)
    ends = [item for key in END_KEYS for item in fields.ids(f"tokenizer.ggml.{key}", vocab)]
    return ModelConfig(
        family=arch,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=uniform(fields, f"{arch}.feed_forward_length", 1, MAX_SIZE * 8),
        vocab=vocab,
        context=scaled_context(rope, context),
        norm_eps=fields.number(f"{arch}.attention.layer_norm_rms_epsilon", 0.0, 1.0),
        rope=rope,
        tied_head="output.weight" not in header.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
        qkv_bias="blk.0.attn_q.bias" in header.tensors,
        output_bias="blk.0.attn_output.bias" in header.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in header.tensors,
        window=window,
        window_layers=[True] * layers if window else [],
        dtype=dtype_of(header),
        end_ids=list(dict.fromkeys(ends)),
    )


def config_from_gguf(path: Path) -> ModelConfig:
    """The configuration of a .gguf file. Raises CheckpointError."""
    source = str(path)
    with map_file(path) as data:
        header = parse_header(data, source)
        with memoryview(data) as view:
            factors = stored_factors(view, header, source)
    return describe(header, factors, source)
