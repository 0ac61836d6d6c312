"""Fills a decoder from a checkpoint, or with random numbers for benchmarks."""

from collections.abc import Callable

import msgspec
import numpy as np
import torch
from torch import Tensor

from checkpoint.config import ModelConfig
from kernels.backend import Kernels
from kernels.reference.linear import Linear
from kernels.reference.rope import RopeSpec
from worker.decoder import Decoder, Layer, Weights

Read = Callable[[str], Tensor]
Progress = Callable[[float], None]

DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}
DUMMY_SEED = 20_240_101
DUMMY_SCALE = 0.02


def resolve_dtype(name: str) -> torch.dtype:
    """The compute type on CPU. Raises ValueError with the choices."""
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not one of {', '.join(DTYPES)}")
    return DTYPES[name]


def to_tensor(array: np.ndarray, stored: str) -> Tensor:
    """A numpy array of a checkpoint as a tensor; bfloat16 arrives as its bits in uint16."""
    array = np.ascontiguousarray(array)
    if not array.flags.writeable:
        array = array.copy()
    if stored == "bfloat16" and array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def build_decoder(config: ModelConfig, read: Read, kernels: Kernels, dtype: torch.dtype, positions: int, progress: Progress) -> Decoder:
    """A decoder for `positions` positions. `read` gives a tensor by its Hugging Face name; `progress` is told a share of 0..1."""
    parts = config.layers + 2

    def get(name: str) -> Tensor:
        return read(name).to(dtype)

    embedding = get("model.embed_tokens.weight")
    progress(1 / parts)
    layers = []
    for number in range(config.layers):
        layers.append(_layer(config, get, kernels, f"model.layers.{number}."))
        progress((number + 2) / parts)
    head = kernels.Linear(embedding if config.tied_head else get("lm_head.weight"))
    weights = Weights(embedding=embedding, layers=layers, norm=get("model.norm.weight"), head=head)
    progress(1.0)
    rope = kernels.rope_table(RopeSpec(**msgspec.structs.asdict(config.rope)), config.head_dim, positions, dtype)
    return Decoder(config, weights, kernels, rope)


def _layer(config: ModelConfig, get: Read, kernels: Kernels, prefix: str) -> Layer:
    def linear(names: list[str], bias: bool) -> Linear:
        weight = torch.cat([get(f"{prefix}{name}.weight") for name in names])
        return kernels.Linear(weight, torch.cat([get(f"{prefix}{name}.bias") for name in names]) if bias else None)

    return Layer(
        input_norm=get(f"{prefix}input_layernorm.weight"),
        qkv=linear(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], config.qkv_bias),
        q_norm=get(f"{prefix}self_attn.q_norm.weight") if config.qk_norm else None,
        k_norm=get(f"{prefix}self_attn.k_norm.weight") if config.qk_norm else None,
        output=linear(["self_attn.o_proj"], config.output_bias),
        mlp_norm=get(f"{prefix}post_attention_layernorm.weight"),
        gate_up=linear(["mlp.gate_proj", "mlp.up_proj"], config.mlp_bias),
        down=linear(["mlp.down_proj"], config.mlp_bias),
    )


def dummy_reader(shapes: dict[str, tuple[int, ...]]) -> Read:
    """A reader of random weights, the same at every start, for benchmarks without a checkpoint: norms are ones, biases zeros."""
    generator = torch.Generator().manual_seed(DUMMY_SEED)

    def read(name: str) -> Tensor:
        shape = shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape)
        if name.endswith(".bias"):
            return torch.zeros(shape)
        return torch.randn(shape, generator=generator) * DUMMY_SCALE

    return read
