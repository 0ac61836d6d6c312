"""The HTTP process: an OpenAI-compatible API, health and metrics. No model files, no tokenizer, no torch."""
