"""The schemas within a JSON Schema."""

import json
import re
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
DEFINITIONS = ("$defs", "definitions")
_MAPS = ("properties", "patternProperties", *DEFINITIONS)
_LISTS = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE = ("items", "additionalProperties")
_NAME = re.compile(r"[\w$-]{1,64}")


def parts_of(schema: Schema) -> Iterator[tuple[str, Schema]]:
    """Those directly below, and the path to each; what is not shaped like a schema is left out."""
    for name, value in schema.items():
        if name in _SINGLE and isinstance(value, dict):
            yield f".{name}", value
        elif name in _LISTS and isinstance(value, list):
            yield from ((f".{name}[{number}]", part) for number, part in enumerate(value) if isinstance(part, dict))
        elif name in _MAPS and isinstance(value, dict):
            yield from ((f".{name}{_step_to(key)}", part) for key, part in value.items() if isinstance(part, dict))


def _step_to(name: str) -> str:
    return f".{name}" if _NAME.fullmatch(name) else f"[{json.dumps(name[:64])}]"
