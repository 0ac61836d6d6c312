"""JSON Schemas of those fields of POST /v1/responses whose types do not say enough."""

from typing import Any

from frontend.effort import BUDGETS
from frontend.responses.fields import LOGPROBS
from frontend.responses.input import MAX_CALL_ID
from frontend.responses.items import MAX_ITEMS, ROLES
from messages.request import MAX_TOOLS

Schema = dict[str, Any]


def _object(required: tuple[str, ...], **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _texts(*kinds: str) -> Schema:
    part = _object(("type", "text"), type={"enum": list(kinds)}, text={"type": "string"})
    return {"type": "array", "items": part, "minItems": 1}


_TEXT: Schema = {"type": "string"}
_CALL_ID: Schema = {"type": "string", "minLength": 1, "maxLength": MAX_CALL_ID}
_MESSAGE = _object(
    ("role", "content"),
    type={"enum": ["message", None]},
    role={"enum": list(ROLES)},
    content={"anyOf": [_TEXT, _texts("input_text", "output_text")]},
)
_REASONING = _object(("type",), type={"const": "reasoning"}, content={**_texts("reasoning_text"), "minItems": 0})
_CALL = _object(("type", "call_id", "name", "arguments"), type={"const": "function_call"}, call_id=_CALL_ID, name=_TEXT, arguments=_TEXT)
_RESULT = _object(
    ("type", "call_id", "output"), type={"const": "function_call_output"}, call_id=_CALL_ID, output={"anyOf": [_TEXT, _texts("input_text")]}
)
_ITEM: Schema = {"anyOf": [_MESSAGE, _REASONING, _CALL, _RESULT], "description": "What a response has in its output may come back as it is."}
_TOOL = _object(
    ("type", "name"),
    type={"const": "function"},
    name={"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,64}$"},
    description={"anyOf": [_TEXT, {"type": "null"}]},
    parameters={"anyOf": [{"type": "object", "description": "A JSON Schema of an object."}, {"type": "null"}]},
    strict={"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": False},
)
_NULL: Schema = {"type": "null"}
FIELDS: dict[str, Schema] = {
    "input": {"anyOf": [_TEXT, {"type": "array", "items": _ITEM, "minItems": 1, "maxItems": MAX_ITEMS}]},
    "tools": {"type": "array", "items": _TOOL, "maxItems": MAX_TOOLS},
    "tool_choice": {"anyOf": [{"enum": ["auto", "none", "required"]}, _object(("type", "name"), type={"const": "function"}, name=_TEXT)]},
    "include": {"type": "array", "items": {"const": LOGPROBS}, "maxItems": 16},
    "reasoning": {
        "type": "object",
        "properties": {"effort": {"enum": [*BUDGETS, None]}, **dict.fromkeys(("summary", "generate_summary", "context", "mode"), _NULL)},
        "additionalProperties": False,
    },
}
