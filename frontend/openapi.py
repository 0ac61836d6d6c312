"""The OpenAPI 3.1 description of the API, made from the Structs of requests and answers."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from frontend.access import OPEN_ROUTES
from frontend.bodies import MAX_BIAS, MAX_PROMPTS
from frontend.errors import AnthropicErrorBody, ErrorBody
from frontend.operations import COMMON, EVENTS, JSON, OPERATIONS, Operation
from frontend.version import VERSION
from messages.request import MAX_TOOLS
from messages.sampling import MAX_BIASED

Schema = dict[str, Any]
TEMPLATE = "#/components/schemas/{name}"
WORDS = {
    400: "A field is wrong, unknown or not supported, or the prompt is too long",
    401: "An API key is needed, or this one is not valid",
    403: "An administrator's API key is needed",
    404: "There is no such thing",
    405: "The method is not allowed here",
    408: "The body took too long to arrive",
    409: "This cannot be done now",
    413: "The body is too large",
    415: "The Content-Encoding is not known",
    417: "The Expect header is not known",
    429: "The queue is full or too slow, or the API key has used up its limits; try again after Retry-After seconds",
    499: "The request was cancelled by DELETE",
    500: "A fault of the server",
    503: "Not ready, overloaded or stopping; try again after Retry-After seconds",
    504: "The request did not end within its timeout",
}
_ID: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_IDS: Schema = {"type": "array", "items": _ID, "minItems": 1}
_PROMPT: Schema = {
    "anyOf": [
        {"type": "string"},
        _IDS,
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS},
        {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
    ]
}
_PART: Schema = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
    "additionalProperties": False,
}
_MESSAGES: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "description": "Other fields that servers answer with are accepted where they are null or empty.",
        "properties": {"role": {"type": "string"}, "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}},
        "required": ["role", "content"],
    },
}
_FUNCTION: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Za-z0-9_.:-]{1,64}$"},
        "description": {"type": "string"},
        "parameters": {"type": "object", "description": "A JSON Schema of an object."},
        "strict": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
    "required": ["name"],
    "additionalProperties": False,
}
_CHOICE: Schema = {
    "anyOf": [
        {"enum": ["auto", "none", "required"]},
        {
            "type": "object",
            "properties": {
                "type": {"const": "function"},
                "function": {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"], "additionalProperties": False},
            },
            "required": ["type", "function"],
            "additionalProperties": False,
        },
    ]
}
_TOOLS: Schema = {
    "type": "array",
    "maxItems": MAX_TOOLS,
    "items": {
        "type": "object",
        "properties": {"type": {"const": "function"}, "function": _FUNCTION},
        "required": ["type", "function"],
        "additionalProperties": False,
    },
}
_BIAS: Schema = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
    "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
    "maxProperties": MAX_BIASED,
}
# What the type of a field does not say.
_BY_NAME = {
    "prompt": _PROMPT, "input": _PROMPT, "messages": _MESSAGES, "logit_bias": _BIAS, "tools": _TOOLS,
    "tool_choice": _CHOICE,
}  # fmt: skip
_CUT = ("max_tokens", "max_completion_tokens", "max_output_tokens", "top_k", "thinking_budget")
"""Larger values are the same as the largest."""
_KEYS: dict[str, Schema] = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "Needed where the server was started with API keys."},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same key in Anthropic's header."},
}
_ANTHROPIC_STREAM = "`message_start` with a MessageBody, blocks as `content_block_*`, `message_delta`, `message_stop`, each behind its `event: `."
_NEUTRAL = "Accepted only at values that change nothing."


def document() -> Schema:
    """The whole description."""
    kinds = [kind for operation in OPERATIONS for kind in (operation.gives, operation.body, operation.events) if kind is not None]
    _, components = msgspec.json.schema_components([*kinds, ErrorBody, AnthropicErrorBody], ref_template=TEMPLATE)
    schemas = dict(components)
    for operation in OPERATIONS:
        if operation.body is not None:
            schemas[operation.body.__name__] = _request(schemas[operation.body.__name__], operation)
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pagewire", "version": VERSION, "description": "A server of large language models with OpenAI's API."},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": _KEYS},
    }


def _operation(operation: Operation) -> Schema:
    described: Schema = {
        "operationId": f"{operation.method}_{operation.path.strip('/').replace('/', '_').replace('{', '').replace('}', '').replace('.', '_')}",
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": dict(_responses(operation)),
    }
    named = re.findall(r"{(\w+)}", operation.path)
    parameters: list[Schema] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named]
    parameters += [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in operation.query.items()]
    if operation.path not in OPEN_ROUTES:
        described["security"] = [{}, *({name: []} for name in _KEYS)]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": _reference(operation.body)}}}
    return described


def _responses(operation: Operation) -> Iterator[tuple[str, Schema]]:
    if operation.media == JSON:
        schema = {"type": "object"} if operation.gives is None else _reference(operation.gives)
    else:
        schema = {} if operation.media == EVENTS else {"type": "string"}
    content: Schema = {operation.media: {"schema": schema}}
    if operation.events is not None:
        text = _ANTHROPIC_STREAM if operation.anthropic else _stream(operation.events)
        content[EVENTS] = {"schema": {"type": "string", "description": text}}
    yield "200", {"description": "Done", "content": content}
    for status in operation.also:
        yield str(status), {"description": WORDS[status], "content": {operation.media: {"schema": schema}}}
    keyed = () if operation.path in OPEN_ROUTES else (401,)
    for status in sorted({*COMMON, *keyed, *operation.errors}):
        shape = AnthropicErrorBody if operation.anthropic else ErrorBody
        yield str(status), {"description": WORDS[status], "content": {JSON: {"schema": _reference(shape)}}}


def _stream(events: object) -> str:
    """What a stream looks like: chunks of one kind, or typed events."""
    if isinstance(events, type):
        return f"Events of {events.__name__}, each behind `data: `, then `data: [DONE]`."
    kinds = ", ".join(kind.__name__ for kind in get_args(events))
    return f"Each event is a line `event: ` with its type and one `data: ` with one of {kinds}."


def _reference(kind: object) -> Schema:
    schema: Schema = msgspec.json.schema_components([kind], ref_template=TEMPLATE)[0][0]
    return schema


def _request(schema: Schema, operation: Operation) -> Schema:
    """null is the same as leaving a field out, fields with a neutral value are known, others are refused."""
    required = schema.get("required", [])
    said = ({} if operation.anthropic else _BY_NAME) | operation.fields
    fields = {name: _field(name, value, name in required, said) for name, value in schema["properties"].items()}
    for name, neutral in operation.neutral.items():
        shown = {"type": "null"} if neutral.schema is None else {"anyOf": [neutral.schema, {"type": "null"}]}
        fields[name] = {**shown, "description": _NEUTRAL}
    return {**schema, "properties": fields, "additionalProperties": False}


def _field(name: str, schema: Schema, required: bool, said: dict[str, Schema]) -> Schema:
    shown = dict(said[name], **({"default": schema["default"]} if "default" in schema else {})) if name in said else dict(schema)
    choices = [{key: value for key, value in choice.items() if key != "maximum" or name not in _CUT} for choice in shown.pop("anyOf", [shown])]
    if not required and {"type": "null"} not in choices:
        choices.append({"type": "null"})
    default = {"default": schema["default"]} if "default" in schema else {}
    choices = [{key: value for key, value in choice.items() if key != "default"} for choice in choices]
    return {**(choices[0] if len(choices) == 1 else {"anyOf": choices}), **default}
