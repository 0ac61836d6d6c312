"""The architecture of a model: one description for every family. Declarations only; `checkpoint.config` reads them from files."""

import msgspec


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding. `kind`: default, linear, llama3, yarn, dynamic. Fields that a kind does not use keep their defaults.

    `original_context` is the context before scaling (llama3, yarn, dynamic).
    """

    theta: float = 10_000.0
    kind: str = "default"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One decoder description. Sizes in elements; `context` in tokens; `window` is the sliding window in tokens or None.

    `window_layers`: which layers use the window (length `layers`; empty when `window` is None).
    `dtype`: the checkpoint's own: float32, bfloat16 or float16.
    """

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocab: int
    context: int
    norm_eps: float
    rope: RopeConfig
    tied_head: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    window: int | None = None
    window_layers: list[bool] = []
    dtype: str = "float32"
    end_ids: list[int] = []
