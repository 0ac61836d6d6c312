"""What a model folder or a .gguf file says: config, special tokens, tensors. Reads only; no torch, nothing of ours imported."""
