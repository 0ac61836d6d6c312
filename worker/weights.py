"""Fills a decoder from a checkpoint, or with random numbers for benchmarks."""

import logging
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np
import torch
from torch import Tensor

from checkpoint.config import ModelConfig
from checkpoint.source import RawTensor
from kernels.backend import Kernels
from kernels.quantised import QuantLinear
from kernels.reference.fp8 import Fp8Linear
from kernels.reference.linear import FAST_ROWS
from kernels.reference.products import Product
from kernels.reference.rope import RopeSpec
from worker.decoder import Decoder, Embed, Layer, Weights

log = logging.getLogger(__name__)

Read = Callable[[str], Tensor]
ReadRaw = Callable[[str], RawTensor]
Progress = Callable[[float], None]

CPU = torch.device("cpu")
DUMMY_SEED = 20_240_101
DUMMY_SCALE = 0.02


def to_tensor(array: np.ndarray, stored: str) -> Tensor:
    """A numpy array of a checkpoint as a tensor; bfloat16 arrives as its bits in uint16."""
    array = np.ascontiguousarray(array)
    if not array.flags.writeable:
        array = array.copy()
    if stored == "bfloat16" and array.dtype == np.uint16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def build_decoder(
    config: ModelConfig,
    read: Read,
    kernels: Kernels,
    dtype: torch.dtype,
    positions: int,
    progress: Progress,
    read_raw: ReadRaw | None = None,
    device: torch.device = CPU,
    fp8: bool = False,
) -> Decoder:
    """A decoder for `positions` positions. `read` gives a tensor by its Hugging Face name; `progress` is told a share of 0..1.

    With `read_raw` and float32, matrices stay in the few bits they are stored in where the kernels can compute with those. With `fp8` they
    are quantised one by one, on the device; the embedding, norms and biases stay in `dtype`.
    """
    parts = config.layers + 2
    matrices = Matrices(read, kernels, dtype, read_raw, device, fp8)
    embed, head = matrices.ends(config.tied_head)
    progress(1 / parts)
    layers = []
    for number in range(config.layers):
        layers.append(_layer(config, matrices, f"model.layers.{number}."))
        progress((number + 2) / parts)
    norm = matrices.get("model.norm.weight")
    weights = Weights(embed=embed, layers=layers, norm=norm, head=head, fast_rows=FAST_ROWS if matrices.dense and device == CPU else 1)
    matrices.report()
    progress(1.0)
    spec, precise = RopeSpec(**msgspec.structs.asdict(config.rope)), dtype if device == CPU else torch.float32
    cos, sin = kernels.rope_table(spec, config.head_dim, positions, precise)
    return Decoder(config, weights, kernels, (cos.to(device), sin.to(device)))


class Matrices:
    """Makes the products of a decoder, in the stored bits where that can be and else in `dtype`, and counts both."""

    def __init__(self, read: Read, kernels: Kernels, dtype: torch.dtype, read_raw: ReadRaw | None, device: torch.device, fp8: bool = False) -> None:
        self.packed: list[QuantLinear] = []
        self.fp8: list[Fp8Linear] = []
        self.dense = 0
        self._read = read
        self._kernels = kernels
        self._dtype = dtype
        self._device = device
        self._fp8 = fp8
        self._read_raw = read_raw if dtype == torch.float32 and device == CPU and not fp8 else None

    def get(self, name: str) -> Tensor:
        """A tensor in `dtype`, on the device."""
        return self._read(name).to(self._device).to(self._dtype)

    def product(self, names: Sequence[str], bias: bool = False) -> Product:
        """The product with the weights of these modules on top of one another."""
        offset = torch.cat([self.get(f"{name}.bias") for name in names]) if bias else None
        return self._stored(names, offset) or self._made(torch.cat([self.get(f"{name}.weight") for name in names]), offset)

    def ends(self, tied: bool) -> tuple[Embed, Product]:
        """The embedding and the head, which may be one matrix. Never FP8: the head alone would lose half as much as all layers do (bench/GPU.md)."""
        name = "model.embed_tokens"
        stored = self._stored([name])
        if stored is not None:
            return stored.embed, stored if tied else self._head()
        table = self.get(f"{name}.weight")
        return partial(self._kernels.embed, table), self._expanded(table, None) if tied else self._head()

    def _head(self) -> Product:
        return self._stored(["lm_head"]) or self._expanded(self.get("lm_head.weight"), None)

    def report(self) -> None:
        """Says how many matrices are kept in which way."""
        if self.packed:
            size = sum(matrix.nbytes for matrix in self.packed) / 1e6
            log.info("quantised weights: %d products with packed matrices (%.0f MB), %d with expanded ones", len(self.packed), size, self.dense)
        if self.fp8:
            size = sum(matrix.weight.nbytes for matrix in self.fp8) / 1e6
            log.info("fp8 weights: %d products (%.0f MB), %d in the type of the arithmetic", len(self.fp8), size, self.dense)

    def _stored(self, names: Sequence[str], bias: Tensor | None = None) -> QuantLinear | None:
        if self._read_raw is None:
            return None
        raw = [self._read_raw(f"{name}.weight") for name in names]
        made = self._kernels.quant_linear([(part.kind, part.data) for part in raw], bias)
        if made is not None:
            self.packed.append(made)
        return made

    def _made(self, weight: Tensor, bias: Tensor | None) -> Product:
        if not self._fp8:
            return self._expanded(weight, bias)
        self.fp8.append(self._kernels.Fp8Linear(weight, bias))
        return self.fp8[-1]

    def _expanded(self, weight: Tensor, bias: Tensor | None) -> Product:
        self.dense += 1
        return self._kernels.Linear(weight, bias)


def _layer(config: ModelConfig, matrices: Matrices, prefix: str) -> Layer:
    def product(names: str, bias: bool) -> Product:
        return matrices.product([prefix + name for name in names.split()], bias)

    return Layer(
        input_norm=matrices.get(f"{prefix}input_layernorm.weight"),
        qkv=product("self_attn.q_proj self_attn.k_proj self_attn.v_proj", config.qkv_bias),
        q_norm=matrices.get(f"{prefix}self_attn.q_norm.weight") if config.qk_norm else None,
        k_norm=matrices.get(f"{prefix}self_attn.k_norm.weight") if config.qk_norm else None,
        output=product("self_attn.o_proj", config.output_bias),
        mlp_norm=matrices.get(f"{prefix}post_attention_layernorm.weight"),
        gate_up=product("mlp.gate_proj mlp.up_proj", config.mlp_bias),
        down=product("mlp.down_proj", config.mlp_bias),
    )


def dummy_reader(shapes: dict[str, tuple[int, ...]], device: torch.device = CPU, dtype: torch.dtype = torch.float32) -> Read:
    """A reader of random weights made on `device`, the same at every start there, for benchmarks: norms are ones, biases zeros."""
    generator = torch.Generator(device).manual_seed(DUMMY_SEED) if device.type != "meta" else None

    def read(name: str) -> Tensor:
        shape = shapes[name]
        if name.endswith("norm.weight"):
            return torch.ones(shape, device=device)
        if name.endswith(".bias"):
            return torch.zeros(shape, device=device)
        return torch.empty(shape, device=device, dtype=dtype).normal_(0, DUMMY_SCALE, generator=generator)

    return read
