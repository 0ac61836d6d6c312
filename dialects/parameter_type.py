"""Whether a parameter is a text, by the JSON Schema that describes it."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

Schema = Mapping[str, Any]
MOST_LOOKS = 100
"""At alternatives, references and values of one parameter, of which a tool may have thousands that refer to the same ones. What has more is text."""
_ALTERNATIVES = ("anyOf", "oneOf")


def is_text(schema: Schema, name: str) -> bool:
    """The parameter of this name may be a text, or nothing is known of it. `schema`: of all parameters, whose definitions it may refer to."""
    properties = schema.get("properties")
    described = properties.get(name) if isinstance(properties, Mapping) else None
    kinds = list(islice(_kinds(described, schema), MOST_LOOKS))
    return len(kinds) == MOST_LOOKS or None in kinds or "string" in kinds


def _kinds(described: Any, root: Schema) -> Iterator[str | None]:
    """Types that it allows; None: one that is not known. Each reference is followed once."""
    waiting, followed = [described], set[str]()
    for _ in range(MOST_LOOKS):
        if not waiting:
            return
        part = waiting.pop()
        if not isinstance(part, Mapping):
            yield None
            continue
        reference = part.get("$ref")
        if isinstance(reference, str):
            if reference not in followed:
                followed.add(reference)
                waiting.append(_referred(reference, root))
            continue
        alternatives = next((part[name] for name in _ALTERNATIVES if isinstance(part.get(name), list)), None)
        if "type" in part:
            kind = part["type"]
            yield from kind if isinstance(kind, list) else [kind]
        elif alternatives is not None:
            waiting += alternatives[:MOST_LOOKS]
        elif "const" in part or isinstance(part.get("enum"), list):
            values = part["enum"] if isinstance(part.get("enum"), list) else [part["const"]]
            yield from ("string" if isinstance(value, str) else "other" for value in values)
        elif isinstance(part.get("allOf"), list) and len(part["allOf"]) == 1:
            waiting += part["allOf"]
        else:
            yield "object" if "properties" in part else None
    yield None


def _referred(reference: str, root: Schema) -> Any:
    """What a pointer within the schema points to; None if nothing."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found if reference.startswith("#/") else None
