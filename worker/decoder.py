"""The decoder: one forward pass for every family, parameterised by ModelConfig.

Shapes: T tokens of the step, C hidden size, H query heads, K key/value heads, D head size, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from checkpoint.config import ModelConfig
from kernels.backend import AttentionBatch, Kernels
from kernels.reference.linear import FAST_ROWS
from kernels.reference.products import Product

Embed = Callable[[Tensor, int], Tensor]
"""Rows of the embedding for tokens [T], as [rows, C] with zeros past them."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Weights of one layer: q, k and v as one product, gate and up as one; `q_norm` and `k_norm` [D] where the family has them."""

    input_norm: Tensor
    qkv: Product
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


@dataclass(frozen=True, kw_only=True)
class Weights:
    """All weights of a model. Products of fewer than `fast_rows` rows are no faster than of that many."""

    embed: Embed
    layers: list[Layer]
    norm: Tensor
    head: Product
    fast_rows: int = FAST_ROWS


@dataclass(frozen=True, kw_only=True)
class StepInput:
    """What one forward pass computes: `tokens` and `positions` [T], which token rows get logits (None: all), and where keys go and are read.

    `windowed` is the attention plan of sliding-window layers (the same object as `full` in models without a window).
    """

    tokens: Tensor
    positions: Tensor
    wanted: Tensor | None
    full: AttentionBatch
    windowed: AttentionBatch


class Decoder:
    """Weights plus rotary tables for positions below `length`, over a KV cache of k and v [layers, blocks + 1, K, P, D]."""

    def __init__(self, config: ModelConfig, weights: Weights, kernels: Kernels, rope: tuple[Tensor, Tensor]) -> None:
        self.config = config
        self._weights = weights
        self.kernels = kernels
        self._cos, self._sin = rope
        self._scale = config.head_dim**-0.5
        self._q_size = config.heads * config.head_dim
        self._windowed = config.window_layers or [False] * config.layers

    def forward(self, step: StepInput, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Logits [wanted, V] of the wanted rows; writes the keys and values of all tokens into the cache.

        They are float32, or of the weights' type where that is what the product gives.
        """
        return self.logits(self.hidden(step, k_cache, v_cache), step.wanted)

    def hidden(self, step: StepInput, k_cache: Tensor, v_cache: Tensor) -> Tensor:
        """Hidden states [rows >= T, C] after the last layer, not normed; writes the keys and values of all tokens into the cache."""
        weights, eps = self._weights, self.config.norm_eps
        count = step.tokens.shape[0]
        rows = max(count, weights.fast_rows)
        x = weights.embed(step.tokens, rows)
        rope = self.kernels.rope_rows(self._cos, self._sin, step.positions)
        mixed = self.kernels.new_rows(x, rows, self._q_size)
        if rows > count:
            mixed[count:].zero_()
        mixed_THD = mixed[:count].view(count, -1, self.config.head_dim)
        caches = zip(k_cache.unbind(), v_cache.unbind(), strict=True)
        decoding = step.wanted is None  # a step of decode rows only
        following = [*(layer.input_norm for layer in weights.layers[1:]), weights.norm]
        ready = None
        for number, (layer, cache) in enumerate(zip(weights.layers, caches, strict=True)):
            batch = step.windowed if self._windowed[number] else step.full
            qkv = self.kernels.norm_linear(x, layer.input_norm, eps, layer.qkv, ready=ready)
            self._attention(layer, qkv if rows == count else qkv[:count], rope, cache, batch, mixed_THD)
            ready = self.kernels.linear_add(x, mixed, layer.output, layer.mlp_norm if decoding else None)
            inner = self.kernels.norm_gate_up(x, layer.mlp_norm, eps, layer.gate_up, ready)
            ready = self.kernels.linear_add(x, inner, layer.down, following[number] if decoding else None)
        return x

    def _attention(
        self, layer: Layer, qkv: Tensor, rope: tuple[Tensor, Tensor], cache: tuple[Tensor, Tensor], batch: AttentionBatch, mixed_THD: Tensor
    ) -> None:
        norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
        self.kernels.rope_attend(qkv, norms, self.config.norm_eps, rope, *cache, batch, self._scale, mixed_THD)

    def logits(self, x: Tensor, wanted: Tensor | None) -> Tensor:
        """Of the rows `wanted` of hidden states (None: all), as `forward` gives them."""
        if wanted is None:
            return self._head(x)
        count, fast = wanted.shape[0], self._weights.fast_rows
        if count == 0:
            return x.new_empty(0, self.config.vocab, dtype=torch.float32)
        if x.shape[0] == fast and count < fast:  # padded already: the rows not wanted cost nothing
            return self._head(x).index_select(0, wanted)
        rows = x.index_select(0, wanted)
        if count < fast:
            rows = torch.cat((rows, rows.new_zeros(fast - count, rows.shape[1])))
        return self._head(rows)[:count]

    def normed(self, x: Tensor, wanted: Tensor) -> Tensor:
        """The rows `wanted` of hidden states after the last norm."""
        return self.kernels.rms_norm(x.index_select(0, wanted), self._weights.norm, self.config.norm_eps)

    def _head(self, x: Tensor) -> Tensor:
        return self.kernels.norm_linear(x, self._weights.norm, self.config.norm_eps, self._weights.head, torch.float32)
