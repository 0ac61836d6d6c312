"""The model's description from the config.json of a folder (Hugging Face layout)."""

from pathlib import Path

from checkpoint.errors import CheckpointError
from checkpoint.fields import Fields, read_json
from checkpoint.rope import MAX_CONTEXT, read_rope, scaled_context
from checkpoint.safetensors_file import SafetensorsFile
from checkpoint.safetensors_tensors import INDEX, SINGLE, weight_map
from checkpoint.structs import ModelConfig

FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
# What transformers takes when config.json does not say.
DEFAULT_KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32}
EMBEDDING = "model.embed_tokens.weight"
DTYPES = ("float32", "bfloat16", "float16")
MAX_SIZE = 1 << 20
MAX_LAYERS = 4096
MAX_VOCAB = 1 << 24
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_intermediate_size")


def family_of(fields: Fields) -> str:
    """The model family. Raises CheckpointError for one that is not supported, and for mixture-of-experts and quantised checkpoints."""
    family = fields.text("model_type", "")
    if family not in FAMILIES:
        raise fields.fail("model_type", f"one of {', '.join(FAMILIES)}: other families are not supported")
    for key in EXPERT_KEYS:
        if fields.get(key) not in (None, 0):
            raise fields.fail(key, "nothing: mixture-of-experts models are not supported")
    if fields.has("quantization_config"):
        raise fields.fail("quantization_config", "nothing: quantised safetensors are not supported; use the original weights or a GGUF file")
    if fields.text("hidden_act", "silu") != "silu":
        raise fields.fail("hidden_act", "silu")
    return family


def head_sizes(fields: Fields, family: str, hidden: int) -> tuple[int, int, int]:
    """(heads, kv_heads, head_dim), each fitting the others."""
    heads = fields.integer("num_attention_heads", 1, 4096)
    missing = DEFAULT_KV_HEADS.get(family, heads) if "num_key_value_heads" not in fields.values else heads
    kv_heads = fields.integer("num_key_value_heads", 1, heads, missing)
    if heads % kv_heads:
        raise fields.fail("num_key_value_heads", f"a divisor of num_attention_heads ({heads})")
    if not fields.has("head_dim") and family != "qwen3" and hidden % heads:
        raise fields.fail("hidden_size", f"a multiple of num_attention_heads ({heads})")
    head_dim = fields.integer("head_dim", 2, 4096, 128 if family == "qwen3" else hidden // heads)
    if head_dim % 2:
        raise fields.fail("head_dim", "an even number")
    return heads, kv_heads, head_dim


def layer_types(fields: Fields, layers: int) -> list[bool] | None:
    """Which layers use the window according to `layer_types`; None when it is absent."""
    if not fields.has("layer_types"):
        return None
    names = {"full_attention": False, "sliding_attention": True}
    value = fields.get("layer_types")
    if not isinstance(value, list) or len(value) != layers or not all(isinstance(item, str) and item in names for item in value):
        raise fields.fail("layer_types", f"{layers} times full_attention or sliding_attention")
    return [names[item] for item in value]


def window_of(fields: Fields, family: str, layers: int) -> tuple[int | None, list[bool]]:
    """(window in tokens or None, the layers that use it), as in transformers: Qwen only with use_sliding_window, Mistral in every layer."""
    types = layer_types(fields, layers)
    used = family == "mistral" or (family.startswith("qwen") and fields.flag("use_sliding_window", False))
    # transformers takes 4096 when the key is absent; null means no window.
    missing = "sliding_window" not in fields.values
    if not used or (not missing and not fields.has("sliding_window")):
        return None, []
    window = fields.integer("sliding_window", 1, MAX_CONTEXT, 4096)
    if family == "mistral":
        if types is not None and not all(types):
            raise fields.fail("layer_types", "no mixture of layer types: Mistral uses its window in every layer")
        return window, [True] * layers
    first = fields.integer("max_window_layers", 0, MAX_LAYERS, 28)
    chosen = types if types is not None else [layer >= first for layer in range(layers)]
    return (window, chosen) if any(chosen) else (None, [])


def stored_dtype(folder: Path) -> str:
    """The dtype in which the weights store the embedding; float32 when there are none (a folder for dummy weights)."""
    name = SINGLE
    if not (folder / SINGLE).is_file() and (folder / INDEX).is_file():
        name = weight_map(folder).get(EMBEDDING, SINGLE)
    if not (folder / name).is_file():
        return "float32"
    entry = SafetensorsFile(folder / name).entries.get(EMBEDDING)
    return entry.dtype if entry is not None and entry.dtype in DTYPES else "float32"


def dtype_of(fields: Fields, folder: Path) -> str:
    """The checkpoint's own dtype, under its new key or its old one, or else that of the stored embedding."""
    key = "dtype" if fields.has("dtype") else "torch_dtype"
    name = fields.text(key).removeprefix("torch.") if fields.has(key) else stored_dtype(folder)
    if name not in DTYPES:
        raise fields.fail(key, f"one of {', '.join(DTYPES)}")
    return name


def end_ids(fields: Fields, folder: Path, vocab: int) -> list[int]:
    """The end tokens of config.json and generation_config.json together."""
    found = fields.ids("eos_token_id", vocab)
    path = folder / "generation_config.json"
    if path.is_file():
        found += read_json(path).ids("eos_token_id", vocab)
    return list(dict.fromkeys(found))


def config_from_folder(folder: Path) -> ModelConfig:
    """The configuration in `folder`/config.json (and the end tokens of generation_config.json). Raises CheckpointError."""
    path = folder / "config.json"
    if not path.is_file():
        ggufs = sorted(file.name for file in folder.glob("*.gguf"))
        hint = f"; to use a GGUF file name it itself, such as {folder / ggufs[0]}" if ggufs else ""
        raise CheckpointError(f"{folder}: there is no config.json{hint}")
    fields = read_json(path)
    family = family_of(fields)
    hidden = fields.integer("hidden_size", 1, MAX_SIZE)
    layers = fields.integer("num_hidden_layers", 1, MAX_LAYERS)
    heads, kv_heads, head_dim = head_sizes(fields, family, hidden)
    vocab = fields.integer("vocab_size", 1, MAX_VOCAB)
    trained = fields.integer("max_position_embeddings", 1, MAX_CONTEXT)
    rope = read_rope(fields, trained)
    window, window_layers = window_of(fields, family, layers)
    bias = family in ("llama", "qwen3") and fields.flag("attention_bias", False)
    return ModelConfig(
        family=family,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp=fields.integer("intermediate_size", 1, MAX_SIZE * 8),
        vocab=vocab,
        context=scaled_context(rope, trained),
        norm_eps=fields.number("rms_norm_eps", 0.0, 1.0, 1e-6),
        rope=rope,
        tied_head=fields.flag("tie_word_embeddings", False),
        qk_norm=family == "qwen3",
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=family == "llama" and fields.flag("mlp_bias", False),
        window=window,
        window_layers=window_layers,
        dtype=dtype_of(fields, folder),
        end_ids=end_ids(fields, folder, vocab),
    )
