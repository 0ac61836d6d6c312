"""The names of the dialects, for options. Nothing is imported for them."""

AUTO, NONE = "auto", "none"
TOOL_NAMES = ("hermes", "qwen3_coder", "llama3_json", "mistral")
REASONING_NAMES = ("think", "mistral")
