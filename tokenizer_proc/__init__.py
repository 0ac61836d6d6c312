"""The tokenizer process: text to token ids and back. Chat templates, encoding, incremental detokenising, stop strings."""
