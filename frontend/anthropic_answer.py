"""Answers in the shapes of Anthropic's Messages API: a message of blocks, whole or as it grows."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from dialects.events import Arguments, CallEnd, CallStart, Content, Event, Reasoning
from frontend.calls import new_id
from frontend.reading import TOOL_CALLS
from frontend.streams import Run
from messages.text import FINISH_LENGTH

END_TURN, MAX_TOKENS, STOP_SEQUENCE, TOOL_USE, FULL = "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
MALFORMED = "malformed"
"""The one field of the input of a call whose arguments are no JSON object: their text."""


class ThinkingTokens(msgspec.Struct):
    thinking_tokens: int


class MessageUsage(msgspec.Struct):
    """`input_tokens` are those that were not cached."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    output_tokens_details: ThinkingTokens | msgspec.UnsetType = msgspec.UNSET


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """There is no signature: what comes back is taken as it is."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessageBody(msgspec.Struct, kw_only=True):
    """POST /v1/messages."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class CountBody(msgspec.Struct):
    """POST /v1/messages/count_tokens."""

    input_tokens: int


def usage(run: Run, output_tokens: int) -> MessageUsage:
    """Of what is known by now."""
    cached, thought = run.cached_tokens, run.reasoning_tokens
    details = msgspec.UNSET if thought is None else ThinkingTokens(thought)
    return MessageUsage(run.prompt_tokens - cached, output_tokens, cached, output_tokens_details=details)


def reason(run: Run, finish: str | None, stop: str | int | None) -> tuple[str, str | None]:
    """Why the answer ended, in Anthropic's words, and the stop sequence that was found."""
    if finish == TOOL_CALLS:
        return TOOL_USE, None
    if finish == FINISH_LENGTH:
        return (MAX_TOKENS if run.completion_tokens == run.max_tokens else FULL), None
    return (STOP_SEQUENCE, stop) if isinstance(stop, str) else (END_TURN, None)


Delta = tuple[str, str]
"""A field of a block and more of its text; for the input of a call its JSON."""
TEXT, THINKING, INPUT = "text", "thinking", "input"


class Blocks:
    """Turns events into blocks that begin, grow and end, one after another."""

    def __init__(self, id_length: int | None) -> None:
        """`id_length`: of the ids of calls, where templates insist on one."""
        self.count = 0
        self._id_length = id_length
        self._open: type[Block] | None = None

    def feed(self, events: Iterable[Event]) -> Iterator[Block | Delta | None]:
        """A block that begins, more of it, or None for its end. `count` - 1 is the place of the block meant."""
        for event in events:
            if isinstance(event, CallStart):
                yield from self._begin(ToolUseBlock(new_id("toolu_", self._id_length), event.name, {}))
            elif isinstance(event, Arguments):
                yield INPUT, event.text
            elif isinstance(event, CallEnd):
                yield from self.end()
            elif isinstance(event, Content):
                if self._open is not TextBlock:
                    yield from self._begin(TextBlock(""))
                yield TEXT, event.text
            elif isinstance(event, Reasoning):
                if self._open is not ThinkingBlock:
                    yield from self._begin(ThinkingBlock(""))
                yield THINKING, event.text

    def _begin(self, block: Block) -> Iterator[Block | None]:
        yield from self.end()
        self._open = type(block)
        self.count += 1
        yield block

    def end(self) -> Iterator[None]:
        """The end of the block that is open, if one is."""
        if self._open is not None:
            self._open = None
            yield None


def whole(events: Iterable[Event], id_length: int | None) -> list[Block]:
    """The blocks of a whole answer."""
    found: list[Block] = []
    texts: list[list[str]] = []
    for step in Blocks(id_length).feed(events):
        if isinstance(step, tuple):
            texts[-1].append(step[1])
        elif step is not None:
            found.append(step)
            texts.append([])
    for block, parts in zip(found, texts, strict=True):
        text = "".join(parts)
        if isinstance(block, TextBlock):
            block.text = text
        elif isinstance(block, ThinkingBlock):
            block.thinking = text
        else:
            block.input = _input(text)
    return found


def _input(text: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)  # stricter than json: what has half of a surrogate pair or NaN in it could not be sent as JSON
    except (msgspec.DecodeError, ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {MALFORMED: text}
