"""Last hidden states of a checkpoint by transformers, float32: embeddings.py FOLDER OUT.npy TOKENS. Prompt: (7 i + 3) mod 290."""

import sys

import numpy as np
import torch
from transformers import AutoModel


def main() -> None:
    torch.set_grad_enabled(False)
    model = AutoModel.from_pretrained(sys.argv[1], dtype=torch.float32)
    ids = (torch.arange(int(sys.argv[3])) * 7 + 3) % 290
    np.save(sys.argv[2], model(ids[None]).last_hidden_state[0].numpy())


if __name__ == "__main__":
    main()
