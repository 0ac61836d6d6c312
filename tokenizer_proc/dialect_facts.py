"""What the frontends need to know of how the model writes tool calls and reasoning."""

from typing import Any

from dialects import detect
from dialects.names import AUTO
from dialects.registry import REASONING, TOOLS
from messages.cluster import MARKER, OPENS, OPENS_OFF, OPENS_ON, REASONING_PARSER, THINKING_SWITCH, TOOL_PARSER
from tokenizer_proc.errors import RequestError
from tokenizer_proc.prompts import PromptEncoder
from tokenizer_proc.templates import ChatTemplate

Facts = dict[str, int | float | str]
_TALK = [{"role": "user", "content": "A"}]


def dialect_facts(encoder: PromptEncoder, tool_parser: str, reasoning_parser: str) -> Facts:
    """By the names that options give the parsers; with AUTO the chat template tells."""
    template = encoder.template
    text = "" if template is None else template.text
    tools = detect.tool_dialect(text) if tool_parser == AUTO else tool_parser
    reasoning = detect.reasoning_dialect(text) if reasoning_parser == AUTO else reasoning_parser
    facts: Facts = {TOOL_PARSER: tools, REASONING_PARSER: reasoning}
    special = encoder.vocabulary.special_ids
    markers = [*(TOOLS[tools].markers if tools in TOOLS else ()), *(REASONING[reasoning].markers if reasoning in REASONING else ())]
    facts |= {f"{MARKER}{marker}": special[marker] for marker in markers if marker in special}
    if template is not None and reasoning in REASONING:
        facts |= _openings(template, REASONING[reasoning].opening, detect.thinking_switch(text))
    return facts


def _openings(template: ChatTemplate, opening: str, switch: str) -> Facts:
    facts: Facts = {OPENS: _opens(template, opening, {})}
    if switch:
        facts |= {THINKING_SWITCH: switch, OPENS_ON: _opens(template, opening, {switch: True}), OPENS_OFF: _opens(template, opening, {switch: False})}
    return facts


def _opens(template: ChatTemplate, opening: str, variables: dict[str, Any]) -> int:
    """Whether a prompt ends within reasoning; 0 when the template refuses the small conversation."""
    try:
        return int(template.render(_TALK, True, None, variables).rstrip().endswith(opening))
    except RequestError:
        return 0
