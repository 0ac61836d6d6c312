"""What is no JSON Schema in a schema, found without anything that works with it: whether its keywords can be enforced is for others to say."""

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

Found = tuple[str, Any]
"""A path in the schema, and what is there."""
MOST_PARTS = 10_000
"""Of one schema are looked at: others wait meanwhile."""
MOST_PATH = 500
"""Characters, behind which nothing is looked at."""
_NAME = re.compile(r"[\w$-]{1,64}")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE = ("additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")


def fault(schema: dict[str, Any]) -> tuple[str, str] | None:
    """The path of the first thing that is wrong, and what it must be; None when nothing is. null counts as absent."""
    waiting: list[Found] = [("", schema)]
    for _ in range(MOST_PARTS):
        if not waiting:
            break
        path, value = waiting.pop()
        if isinstance(value, bool):
            continue
        if not isinstance(value, dict):
            return path, "must be a JSON Schema: an object, or true or false"
        for name, wrong, words in _shapes(value):
            if wrong:
                return f"{path}.{name}", words
        if len(path) < MOST_PATH:
            waiting += reversed([(path + step, part) for step, part in islice(_parts(value), MOST_PARTS)])
    return None


def _shapes(schema: dict[str, Any]) -> Iterator[tuple[str, bool, str]]:
    """Of keywords: the name, whether it has the wrong shape, and which it must have."""
    for name, value in schema.items():
        if value is None:
            continue
        if name in _MAPS:
            yield name, not isinstance(value, dict), "must be an object of JSON Schemas"
        elif name in _LISTS:
            yield name, not isinstance(value, list), "must be a list of JSON Schemas"
        elif name == "enum":
            yield name, not isinstance(value, list), "must be a list"
        elif name == "required":
            yield name, not _is_texts(value), "must be a list of names"
        elif name == "type":
            yield name, not (isinstance(value, str) or _is_texts(value)), "must be a name of a type or a list of such"


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _parts(schema: dict[str, Any]) -> Iterator[Found]:
    for name, value in schema.items():
        if value is None:
            continue
        if name in _MAPS:
            yield from ((f".{name}{_step_to(key)}", part) for key, part in value.items())
        elif name in _LISTS or (name == "items" and isinstance(value, list)):
            yield from ((f".{name}[{number}]", part) for number, part in enumerate(value))
        elif name in _SINGLE or name == "items":
            yield f".{name}", value


def _step_to(name: str) -> str:
    return f".{name}" if _NAME.fullmatch(name) else f"[{json.dumps(name[:64])}]"
