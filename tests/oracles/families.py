"""Tiny random models of every family and rope kind, written and run by transformers in float32: families.py FOLDER

Writes FOLDER/<case>/ (a checkpoint) and FOLDER/<case>.npz with `ids` and `logits` [tokens, vocab] for one sequence, computed at once; for dynamic
rope token by token, as in generation.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

TOKENS = 300
SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 131, "max_position_embeddings": 512, "tie_word_embeddings": False, "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ROPE = {"rope_theta": 10_000.0}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "llama-biases-tied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-mha": ("llama", {"num_key_value_heads": 4, "head_dim": 24}),
    "llama-linear": ("llama", {"rope_parameters": {**ROPE, "rope_type": "linear", "factor": 3.0}}),
    "llama-llama3": ("llama", {"rope_parameters": {**ROPE, "rope_type": "llama3", "factor": 8.0, **LLAMA3}}),
    "llama-yarn": ("llama", {"rope_parameters": {**ROPE, "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64}}),
    "llama-dynamic": ("llama", {"max_position_embeddings": 128, "rope_parameters": {**ROPE, "rope_type": "dynamic", "factor": 4.0}}),
    "qwen2": ("qwen2", {}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "mistral-window": ("mistral", {"sliding_window": 64}),
}


def randomise(model: torch.nn.Module) -> None:
    """Weights of useful size everywhere, norms and biases included."""
    torch.manual_seed(11)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
        else:
            parameter.copy_(0.15 * torch.randn_like(parameter))


def logits_of(model: Any, ids: torch.Tensor, one_by_one: bool) -> torch.Tensor:
    if not one_by_one:
        whole: torch.Tensor = model(ids).logits[0]
        return whole
    rows, past = [], None
    for position in range(ids.shape[1]):
        out = model(ids[:, position : position + 1], past_key_values=past, use_cache=True)
        past = out.past_key_values
        rows.append(out.logits[0, -1])
    return torch.stack(rows)


def main() -> None:
    torch.set_grad_enabled(False)
    folder = Path(sys.argv[1])
    for name, (family, changes) in CASES.items():
        config = AutoConfig.for_model(family, **{**SMALL, **changes})
        config._attn_implementation = "eager"
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        randomise(model)
        model.save_pretrained(folder / name)
        ids = torch.randint(3, 131, (1, TOKENS), generator=torch.Generator().manual_seed(5))
        logits = logits_of(model, ids, "dynamic" in name)
        np.savez(folder / f"{name}.npz", ids=ids[0].numpy(), logits=logits.numpy())


if __name__ == "__main__":
    main()
