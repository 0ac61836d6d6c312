"""Llama 3: `{"name": "f", "parameters": {...}}` as the whole answer, or behind `<|python_tag|>`; further calls behind a semicolon or a space."""

from collections.abc import Collection

from dialects.events import Event, Markup
from dialects.tool_parser import ToolParser

PYTHON_TAG, BRACE, SEMICOLON = "<|python_tag|>", "{", ";"


class LlamaParser(ToolParser):
    """An object that calls no tool by its name is content: an answer may well be JSON."""

    markers = (PYTHON_TAG,)

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self._expect(PYTHON_TAG, BRACE)

    def _called(self, marker: str, raw: str) -> None:
        self._begin_object(raw)

    def _object_over(self) -> None:
        self._expect(SEMICOLON, PYTHON_TAG, BRACE)

    def _closed(self, found: str, raw: str, out: list[Event]) -> None:
        if found == SEMICOLON:
            out.append(Markup(raw))
            self._expect(BRACE)
            return
        self._begin_object(raw.removesuffix(BRACE))
        if found == BRACE:
            self._run(BRACE, out)
