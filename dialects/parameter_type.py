"""Whether a parameter is a text, by the JSON Schema that describes it."""

from collections.abc import Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
_ALTERNATIVES = ("anyOf", "oneOf")


def is_text(schema: Schema, name: str) -> bool:
    """The parameter of this name may be a text, or nothing is known of it. `schema`: of all parameters, whose definitions it may refer to."""
    properties = schema.get("properties")
    described = properties.get(name) if isinstance(properties, Mapping) else None
    return any(kind in (None, "string") for kind in _kinds(described, schema))


def _kinds(described: Any, root: Schema) -> Iterator[str | None]:
    """Types that it allows; None: one that is not known. Each reference is followed once."""
    waiting, followed = [described], set[str]()
    while waiting:
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
            waiting += alternatives
        elif "const" in part or isinstance(part.get("enum"), list):
            values = part["enum"] if isinstance(part.get("enum"), list) else [part["const"]]
            yield from ("string" if isinstance(value, str) else "other" for value in values)
        elif isinstance(part.get("allOf"), list) and len(part["allOf"]) == 1:
            waiting += part["allOf"]
        else:
            yield "object" if "properties" in part else None


def _referred(reference: str, root: Schema) -> Any:
    """What a pointer within the schema points to; None if nothing."""
    found: Any = root
    for step in reference.removeprefix("#").split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found if reference.startswith("#/") else None
