"""The least time a device needs for a workload: every step reads all weights once and the keys and values of its rows once."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from checkpoint.config import ModelConfig
from checkpoint.tensors import expected_tensors, layer_tensors

H200_PRODUCT = 785e12
"""Operations a second of a large bfloat16 product on an H200, as measured; other devices have another."""


@dataclass(frozen=True, kw_only=True)
class Floor:
    """`bandwidth` in bytes read and written a second by a copy, in the run that is judged.

    Bytes of an element: `matrix_item` of the matrices of the layers, `kv_item` of keys and values, `item` of all else.
    """

    config: ModelConfig
    bandwidth: float
    item: int = 2
    matrix_item: int = 2
    kv_item: int = 2
    product: float = H200_PRODUCT

    @property
    def weights(self) -> int:
        """Bytes of all weights that a step reads: an embedding that is not the head too is read by rows only."""
        shapes = expected_tensors(self.config)
        if not self.config.tied_head:
            del shapes["model.embed_tokens.weight"]
        matrices = sum(math.prod(shape) for shape in layer_tensors(self.config).values() if len(shape) == 2) * self.config.layers
        return self.item * (sum(map(math.prod, shapes.values())) - matrices) + self.matrix_item * matrices

    @property
    def token(self) -> int:
        """Bytes of keys and values of one token."""
        return 2 * self.config.layers * self.config.kv_heads * self.config.head_dim * self.kv_item

    def prefill(self, tokens: int) -> float:
        """Seconds of the matrix products of prompt tokens, without the head."""
        layer = sum(math.prod(shape) for shape in layer_tensors(self.config).values() if len(shape) == 2)
        return 2 * layer * self.config.layers * tokens / self.product

    def decode(self, rows: int, context: float) -> float:
        """Seconds of one step of `rows` rows of `context` tokens each."""
        return (self.weights + rows * context * self.token) / self.bandwidth

    def offline(self, prompts: Sequence[int], outputs: Sequence[int]) -> float:
        """Seconds for requests of these lengths in tokens that all run at once."""
        keys = sum(count * prompt + count * (count + 1) // 2 for prompt, count in zip(prompts, outputs, strict=True))
        return self.prefill(sum(prompts)) + (max(outputs) * self.weights + keys * self.token) / self.bandwidth
