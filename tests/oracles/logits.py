"""float32 logits by transformers: logits.py CHECKPOINT OUT.npy TOKENS. Prompt: (7 i + 3) mod vocab; CHECKPOINT is a folder or a .gguf file."""

import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    torch.set_grad_enabled(False)
    path, count = Path(sys.argv[1]), int(sys.argv[3])
    if path.is_dir():
        model = AutoModelForCausalLM.from_pretrained(str(path), dtype=torch.float32)
    else:
        model = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    ids = (torch.arange(count) * 7 + 3) % model.config.vocab_size
    np.save(sys.argv[2], model(ids[None]).logits[0].numpy())


if __name__ == "__main__":
    main()
