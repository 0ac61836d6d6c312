"""Which dialects a chat template teaches, told by the markers in it."""

import re

from dialects.names import NONE
from dialects.registry import REASONING


def tool_dialect(template: str) -> str:
    """A name in `TOOLS`, or NONE."""
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<tool_call>" in template:
        return "qwen3_coder" if "<function=" in template else "hermes"
    if "<|python_tag|>" in template or ('"parameters": ' in template and "<|start_header_id|>" in template):
        return "llama3_json"
    return NONE


def reasoning_dialect(template: str) -> str:
    """A name in `REASONING`, or NONE."""
    return next((name for name, dialect in REASONING.items() if dialect.closing in template), NONE)


_SWITCH = re.compile(r"\benable_thinking\b|\bthinking(?= is | %}| -%})")


def thinking_switch(template: str) -> str:
    """The variable by which it turns reasoning on and off, or nothing."""
    found = _SWITCH.search(template)
    return found[0] if found else ""
