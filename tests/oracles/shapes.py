"""A random model by transformers, of few layers: `shapes.py make FOLDER FAMILY small|large`, then `shapes.py run FOLDER < sequences`.

`make` writes a checkpoint in bfloat16 into FOLDER; `large` has the width of a published model. `run` reads {type: [[ids, first], ...]} and writes
FOLDER/<type>.npz: for sequence i `exact_i`, the logits from position `first` on with the model in float64, and `own_i`, in that type.
On a GPU when there is one.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COMMON = {
    "vocab_size": 8009, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "num_hidden_layers": 3,
    "tie_word_embeddings": False,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}  # fmt: skip


def _sizes(hidden: int, mlp: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, int]:
    return {
        "hidden_size": hidden, "intermediate_size": mlp, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim,
    }  # fmt: skip


MORE: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": LLAMA3},
    "qwen2": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "qwen3": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "tie_word_embeddings": True},
    "mistral": {"sliding_window": 512},
}
SIZES = {
    "large": {
        "llama": _sizes(2048, 8192, 32, 8, 64), "qwen2": _sizes(896, 4864, 14, 2, 64), "qwen3": _sizes(1024, 3072, 16, 8, 128),
        "mistral": _sizes(4096, 14336, 32, 8, 128),
    },
    "small": {
        "llama": _sizes(128, 256, 4, 1, 32), "qwen2": _sizes(112, 224, 7, 1, 16), "qwen3": _sizes(128, 256, 4, 2, 48),
        "mistral": _sizes(128, 256, 4, 1, 32),
    },
}  # fmt: skip


def randomise(model: torch.nn.Module) -> None:
    """Weights that neither die out nor grow from layer to layer, norms and biases included."""
    torch.manual_seed(11)
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter, dtype=torch.float32)
        if name.endswith("norm.weight"):
            parameter.copy_(1 + 0.3 * noise)
        elif parameter.dim() == 1:
            parameter.copy_(0.3 * noise)
        else:
            parameter.copy_(noise * (1.0 if "embed" in name else parameter.shape[1] ** -0.5))


def make(folder: Path, family: str, size: str) -> None:
    config = AutoConfig.for_model(family, **{**COMMON, **SIZES[size][family], **MORE[family]})
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    randomise(model)
    model.save_pretrained(folder)


def logits(model: Any, ids: list[int], first: int) -> np.ndarray:
    found: torch.Tensor = model(torch.tensor([ids], device=DEVICE), logits_to_keep=len(ids) - first).logits[0]
    return found.float().cpu().numpy()


def run(folder: Path, wanted: dict[str, list[tuple[list[int], int]]]) -> None:
    for name, sequences in wanted.items():
        columns: dict[str, Any] = {}
        for column, dtype in (("exact", torch.float64), ("own", getattr(torch, name))):
            model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
            model = model.to(DEVICE)
            columns |= {f"{column}_{number}": logits(model, *sequence) for number, sequence in enumerate(sequences)}
        np.savez(folder / f"{name}.npz", **columns)


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    if sys.argv[1] == "make":
        make(Path(sys.argv[2]), *sys.argv[3:])
    else:
        run(Path(sys.argv[2]), json.load(sys.stdin))
