"""Published model shapes, for measuring speed with random weights where no checkpoint is at hand."""

from checkpoint.structs import ModelConfig, RopeConfig

SHAPES = {
    "qwen3-0.6b": ModelConfig(
        family="qwen3", hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, mlp=3072, vocab=151_936, context=40_960, norm_eps=1e-6,
        rope=RopeConfig(theta=1e6), tied_head=True, qk_norm=True, dtype="bfloat16",
    ),
    "llama3.2-1b": ModelConfig(
        family="llama", hidden=2048, layers=16, heads=32, kv_heads=8, head_dim=64, mlp=8192, vocab=128_256, context=131_072, norm_eps=1e-5,
        rope=RopeConfig(theta=5e5, kind="llama3", factor=32.0, original_context=8192), tied_head=True, dtype="bfloat16",
    ),
    "llama3.1-8b": ModelConfig(
        family="llama", hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, mlp=14_336, vocab=128_256, context=131_072, norm_eps=1e-5,
        rope=RopeConfig(theta=5e5, kind="llama3", factor=8.0, original_context=8192), dtype="bfloat16",
    ),
}  # fmt: skip
