"""Grammars of tool calls that must come: each dialect's notation with the JSON Schemas of the tools in it, in llguidance's Lark syntax."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dialects import coder, hermes, mistral
from dialects.registry import ReasoningDialect, Tools

_ANY = "/(?s:.*)/"


@dataclass(frozen=True)
class Wanted:
    """`tools` may be called, at least one. `several`: more than one call may come. `ids`: of the markers that are special tokens, which a grammar
    must name by their ids; the others are text."""

    tools: Tools
    several: bool
    ids: Mapping[str, int]

    def mark(self, text: str) -> str:
        """A marker as a terminal."""
        return f"<[{self.ids[text]}]>" if text in self.ids else _text(text)


def grammar_of(dialect: str, wanted: Wanted, reasoning: ReasoningDialect | None = None, inside: bool = False) -> str:
    """The grammar of an answer that is calls in this dialect (a name of `dialects.registry.TOOLS`) and nothing else. Before them it may reason;
    with `inside` the prompt has opened the reasoning, and it must be closed first."""
    rules = list(_CALLS[dialect](wanted))
    start = "calls"
    if reasoning is not None:
        start = "thought GAP calls" if inside else f"({wanted.mark(reasoning.opening)} thought GAP)? calls"
        rules += [*_thought(reasoning, wanted), "GAP: /\n*/"]
    return "\n".join([f"start: {start}", *rules])


def _thought(reasoning: ReasoningDialect, wanted: Wanted) -> Iterator[str]:
    """Any text up to the closing marker."""
    if reasoning.closing in wanted.ids:
        yield f"thought: THOUGHT {wanted.mark(reasoning.closing)}"
        yield f"THOUGHT: {_ANY}"
    else:
        yield _up_to("thought", reasoning.closing)


def _up_to(rule: str, end: str) -> str:
    """Any text up to the first `end`, which is text too."""
    return f"{rule}[suffix={_text(end)}]: {_ANY}"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _objects(tools: Tools, arguments: str) -> Iterator[str]:
    """Rules of `object`: a call of any of the tools as a JSON object."""
    yield "object: " + " | ".join(f"object_{number}" for number in range(len(tools)))
    for number, (name, schema) in enumerate(tools.items()):
        head = '{"name": ' + json.dumps(name) + f', "{arguments}": '
        yield f"object_{number}: {_text(head)} arguments_{number} {_text('}')}"
        yield _json(f"arguments_{number}", schema)


def _json(rule: str, schema: Mapping[str, Any]) -> str:
    return f"{rule}: %json {json.dumps({'type': 'object', **schema})}"


def _calls(call: str, between: str, wanted: Wanted) -> str:
    return f"calls: {call} ({between} {call})*" if wanted.several else f"calls: {call}"


def _hermes(wanted: Wanted) -> Iterator[str]:
    line = _text("\n")
    yield _calls("call", line, wanted)
    yield f"call: {wanted.mark(hermes.OPENING)} {line} object {line} {wanted.mark(hermes.CLOSING)}"
    yield from _objects(wanted.tools, "arguments")


def _llama(wanted: Wanted) -> Iterator[str]:
    yield _calls("object", _text("; "), wanted)
    yield from _objects(wanted.tools, "parameters")


def _mistral(wanted: Wanted) -> Iterator[str]:
    """In the newer form where the vocabulary has its markers."""
    if mistral.ARGS not in wanted.ids:
        several = f"({_text(', ')} object)*" if wanted.several else ""
        yield f"calls: {wanted.mark(mistral.CALLS)} {_text('[')} object {several} {_text(']')}"
        yield from _objects(wanted.tools, "arguments")
        return
    yield _calls("call", '""', wanted)
    yield "call: " + " | ".join(f"call_{number}" for number in range(len(wanted.tools)))
    for number, (name, schema) in enumerate(wanted.tools.items()):
        yield f"call_{number}: {wanted.mark(mistral.CALLS)} {_text(name)} {wanted.mark(mistral.ARGS)} arguments_{number}"
        yield _json(f"arguments_{number}", schema)


def _coder(wanted: Wanted) -> Iterator[str]:
    line = _text("\n")
    yield _calls("call", line, wanted)
    functions = " | ".join(f"function_{number}" for number in range(len(wanted.tools)))
    yield f"call: {wanted.mark(coder.OPENING)} {line} ({functions}) {_text(coder.FUNCTION_END)} {line} {wanted.mark(coder.CLOSING)}"
    for number, (name, schema) in enumerate(wanted.tools.items()):
        given: Mapping[str, Any] = schema.get("properties") or {}
        needed: Sequence[str] = schema.get("required") or ()
        parts = [f"parameter_{number}_{place}" + ("" if field in needed else "?") for place, field in enumerate(given)]
        yield f"function_{number}: {_text(f'{coder.FUNCTION}{name}>')} {line} {' '.join(parts)}"
        for place, field in enumerate(given):
            yield from _parameter(f"parameter_{number}_{place}", field, schema)


def _parameter(rule: str, name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    head, tail = _text(f"{coder.PARAMETER}{name}>\n"), f"\n{coder.PARAMETER_END}\n"
    if coder.is_text(schema, name):
        yield f"{rule}: {head} {rule}_text"
        yield _up_to(f"{rule}_text", tail)
    else:
        yield f"{rule}: {head} {rule}_value {_text(tail)}"
        yield f"{rule}_value: %json {json.dumps(schema['properties'][name])}"


_CALLS: dict[str, Callable[[Wanted], Iterator[str]]] = {"hermes": _hermes, "llama3_json": _llama, "mistral": _mistral, "qwen3_coder": _coder}
