"""Writes a GGUF twin of a tiny checkpoint folder, as llama.cpp's converter would."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import MODEL_ARCH, GGMLQuantizationType, GGUFValueType
from numpy.typing import NDArray
from safetensors.numpy import load_file

from tests.support.gguf_quants import quantise_q4_k, quantise_q6_k

ARCHITECTURES = {"llama": MODEL_ARCH.LLAMA, "mistral": MODEL_ARCH.LLAMA, "qwen2": MODEL_ARCH.QWEN2, "qwen3": MODEL_ARCH.QWEN3}
NORMAL, CONTROL, UNUSED = 1, 3, 5
VALUE_TYPES = {bool: GGUFValueType.BOOL, int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file."""
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def shuffle_rows(values: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """llama.cpp's order of the rows of q and k: rotary pairs side by side."""
    half = values.shape[0] // heads // 2
    return np.ascontiguousarray(values.reshape(heads, 2, half, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape))


def add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    """The architecture's numbers."""
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.get("rope_theta", 10_000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def add_tokenizer(writer: gguf.GGUFWriter, folder: Path, vocab: int, pre: str) -> dict[str, int]:
    """A gpt2-type vocabulary, padded to the rows of the model, with merges and the chat template. Gives the id of every token."""
    stored = read_object(folder / "tokenizer.json")
    ids = {**stored["model"]["vocab"], **{token["content"]: token["id"] for token in stored["added_tokens"]}}
    specials = {token["content"] for token in stored["added_tokens"] if token["special"]}
    by_id = {number: token for token, number in ids.items()}
    tokens = [by_id.get(number, f"[PAD{number}]") for number in range(vocab)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([CONTROL if token in specials else NORMAL if token in ids else UNUSED for token in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in stored["model"]["merges"]])
    template = read_object(folder / "tokenizer_config.json").get("chat_template")
    if template is not None:
        writer.add_chat_template(template)
    return ids


def add_tensor(writer: gguf.GGUFWriter, name: str, values: NDArray[np.float32], kind: str) -> None:
    """One tensor; vectors stay float32, as in files made by llama.cpp."""
    if values.ndim == 1 or kind == "F32":
        writer.add_tensor(name, values)
        return
    own = {"Q4_K": quantise_q4_k, "Q6_K": quantise_q6_k}.get(kind)
    number = GGMLQuantizationType[kind]
    writer.add_tensor(name, own(values) if own is not None else gguf.quants.quantize(values, number), raw_dtype=number)


def add_tensors(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any], kind: str) -> None:
    """All tensors under their GGUF names, q and k in llama.cpp's order for the llama architecture."""
    names = gguf.get_tensor_name_map(ARCHITECTURES[config["model_type"]], config["num_hidden_layers"])
    heads = config["num_attention_heads"]
    groups = {"q_proj": heads, "k_proj": config.get("num_key_value_heads") or heads} if config["model_type"] in ("llama", "mistral") else {}
    for name, values in load_file(folder / "model.safetensors").items():
        if config.get("tie_word_embeddings") and name == "lm_head.weight":
            continue
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if stored is None:
            raise ValueError(f"no GGUF name for {name}")
        count = groups.get(name.split(".")[-2])
        add_tensor(writer, stored, shuffle_rows(values, count) if count else values, kind)


def write_twin(
    folder: Path,
    target: Path,
    *,
    kind: str = "F32",
    add_bos: bool | None = True,
    bos: bool = True,
    eos: bool = True,
    eot: bool = True,
    pre: str = "gpt-2",
    extra: dict[str, Any] | None = None,
) -> Path:
    """Writes `target` (a .gguf file) from a `-byte` folder with config.json, tokenizer.json and float32 model.safetensors.

    `kind`: storage of the matrices (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K; also Q5_0 and Q5_1, which the reader refuses).
    `add_bos`: tokenizer.ggml.add_bos_token, None to leave it out. `bos`, `eos`, `eot`: whether the file gives these token ids.
    `pre`: tokenizer.ggml.pre. `extra`: more metadata, whole numbers, floats, booleans and strings by full key.
    """
    config = read_object(folder / "config.json")
    writer = gguf.GGUFWriter(target, gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config["model_type"]]])
    writer.add_name(folder.name)
    add_config(writer, config)
    ids = add_tokenizer(writer, folder, config["vocab_size"], pre)
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    if bos:
        writer.add_bos_token_id(ids["<|bos|>"])
    if eos:
        writer.add_eos_token_id(ids["<|eos|>"])
    if eot:
        writer.add_eot_token_id(ids["<|eot|>"])
    for key, value in (extra or {}).items():
        writer.add_key_value(key, value, VALUE_TYPES[type(value)])
    add_tensors(writer, folder, config, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
