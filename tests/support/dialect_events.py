"""What the parsers of dialects find in a text that comes in pieces, told so that it can be compared."""

import itertools
from collections.abc import Iterable
from typing import Any

from dialects.events import Arguments, CallEnd, CallStart, Content, Event, Markup, Reasoning
from dialects.reader import Reader
from dialects.registry import REASONING, TOOLS, Tools, make_reader

PARTS = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<function=f>", "<function=", "</function>", "<parameter=x>", "<parameter=s>",
    "</parameter>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "[", "]", "{", "}", '"', "\\", ",", ":", ";", " ", "\n", '"name"',
    '"f"', '"arguments"', '"parameters"', '{"name": "f", "arguments": {', '{"name": "f", "parameters": {"x": 1}}', '{"x": [1, {"y": null}]}',
    "f", "get_time", "text", "<", "é", "\u2028", " " * 250, "12",
]  # fmt: skip
"""What texts with calls are made of, and what could be taken for it."""
OFFERED: dict[str, dict[str, Any]] = {
    "f": {"type": "object", "properties": {"x": {"type": "integer"}, "s": {"type": "string"}}},
    "get_time": {"type": "object", "properties": {}},
}


def reader(tools: str | None, reasoning: str | None = None, inside: bool = False, offered: Tools = OFFERED) -> Reader:
    return make_reader(TOOLS[tools] if tools else None, offered, REASONING[reasoning] if reasoning else None, inside)


def parse(parts: Iterable[str], dialect: str | None, reasoning: str | None = None, inside: bool = False, tools: Tools = OFFERED) -> list[Event]:
    made = reader(dialect, reasoning, inside, tools)
    return merged([event for part in parts for event in made.push(part)] + made.finish())


def merged(events: list[Event]) -> list[Event]:
    """Neighbours of one kind are one; arguments that are made from another notation stand behind the markup they were made from."""
    found: list[Event] = []
    for event in events:
        last, before = found[-1] if found else None, found[-2] if len(found) > 1 else None
        if isinstance(event, Markup) and isinstance(before, Markup) and isinstance(last, Arguments) and not last.verbatim:
            found[-2] = Markup(before.text + event.text)
        elif isinstance(event, Arguments) and isinstance(last, Arguments) and last.index == event.index:
            found[-1] = Arguments(event.index, last.text + event.text, event.verbatim)
        else:
            kind = next((kind for kind in (Content, Reasoning, Markup) if isinstance(event, kind) and isinstance(last, kind)), None)
            if kind is None or not isinstance(last, Content | Reasoning | Markup) or not isinstance(event, Content | Reasoning | Markup):
                found.append(event)
            else:
                found[-1] = kind(last.text + event.text)
    return found


def written(events: list[Event]) -> str:
    """The text that the events came from."""
    texts = (event for event in events if not isinstance(event, CallStart | CallEnd))
    return "".join(event.text for event in texts if not (isinstance(event, Arguments) and not event.verbatim))


def seen(events: list[Event]) -> tuple[str, list[tuple[str, str, bool]], str]:
    """Content, calls (name, arguments, whole) and reasoning."""
    calls = [event for event in events if isinstance(event, CallStart)]
    assert [call.index for call in calls] == list(range(len(calls)))
    ends = {event.index for event in events if isinstance(event, CallEnd)}
    told = [
        (call.name, "".join(event.text for event in events if isinstance(event, Arguments) and event.index == call.index), call.index in ends)
        for call in calls
    ]
    content = "".join(event.text for event in events if isinstance(event, Content))
    return content, told, "".join(event.text for event in events if isinstance(event, Reasoning))


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[begin:end] for begin, end in itertools.pairwise(edges)]
