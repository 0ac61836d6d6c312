"""The dialects there are, by the names that options give them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dialects import coder, hermes, llama, mistral
from dialects.reader import Reader
from dialects.reasoning import ReasoningParser
from dialects.tool_parser import ToolParser

Tools = Mapping[str, Mapping[str, Any]]
"""Name of a tool to the JSON Schema of its parameters."""


@dataclass(frozen=True)
class ToolDialect:
    """`make`: a parser of one answer. `markers`: texts that must be seen, which a vocabulary may have as special tokens. `id_length`: of the ids of
    calls, where templates insist on one."""

    make: Callable[[Tools], ToolParser]
    markers: tuple[str, ...]
    id_length: int | None = None


@dataclass(frozen=True)
class ReasoningDialect:
    opening: str
    closing: str

    @property
    def markers(self) -> tuple[str, ...]:
        return self.opening, self.closing


TOOLS: dict[str, ToolDialect] = {
    "hermes": ToolDialect(hermes.HermesParser, (hermes.OPENING, hermes.CLOSING)),
    "qwen3_coder": ToolDialect(
        coder.CoderParser, (coder.OPENING, coder.CLOSING, coder.FUNCTION, coder.FUNCTION_END, coder.PARAMETER, coder.PARAMETER_END)
    ),
    "llama3_json": ToolDialect(llama.LlamaParser, (llama.PYTHON_TAG,)),
    "mistral": ToolDialect(mistral.MistralParser, (mistral.CALLS, mistral.CALL_ID, mistral.ARGS), id_length=9),
}
REASONING: dict[str, ReasoningDialect] = {
    "think": ReasoningDialect("<think>", "</think>"),
    "mistral": ReasoningDialect("[THINK]", "[/THINK]"),
}


def make_reader(tools: ToolDialect | None, offered: Tools, reasoning: ReasoningDialect | None, inside: bool) -> Reader:
    """Of one answer. `inside`: the prompt has opened the reasoning."""
    return Reader(
        None if reasoning is None else ReasoningParser(reasoning.opening, reasoning.closing, inside),
        None if tools is None else tools.make(offered),
    )
