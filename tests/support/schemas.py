"""Fifty JSON Schemas of the kinds that people use: nested, arrays, enums, recursion, formats, references, alternatives, bounds."""

import json
import re
from typing import Any

import jsonschema

Schema = dict[str, Any]
TEXT: Schema = {"type": "string", "maxLength": 24}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 100}


def objects(required: list[str] | None = None, **properties: Any) -> Schema:
    """An object with these properties alone, all required unless it says which."""
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required, "additionalProperties": False}


def arrays(items: Schema, low: int = 0, high: int = 3) -> Schema:
    return {"type": "array", "items": items, "minItems": low, "maxItems": high}


def formats(name: str) -> Schema:
    return objects(value={"type": "string", "format": name})


TREE: Schema = objects(["value"], value=COUNT, children={"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2})
LINKED: Schema = objects(["head"], head=TEXT, rest={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]})
EXPRESSION: Schema = {
    "anyOf": [{"type": "number"}, objects(op={"enum": ["+", "*"]}, left={"$ref": "#/$defs/expression"}, right={"$ref": "#/$defs/expression"})]
}
ADDRESS: Schema = objects(street=TEXT, city=TEXT, zip={"type": "string", "pattern": "^[0-9]{5}$"})
SHAPES: Schema = {"anyOf": [objects(kind={"const": "circle"}, radius={"type": "number"}), objects(kind={"const": "square"}, side={"type": "number"})]}

SCHEMAS: dict[str, Schema] = {
    # One level
    "person": objects(name=TEXT, age=COUNT),
    "optional": objects(["name"], name=TEXT, nick=TEXT, age=COUNT),
    "all optional": objects([], a=TEXT, b=COUNT, c={"type": "boolean"}),
    "empty": objects(),
    "numbers": objects(a={"type": "number"}, b={"type": "integer"}, c={"type": "number", "minimum": -1, "maximum": 1}),
    "exclusive": objects(a={"type": "integer", "exclusiveMinimum": 5, "exclusiveMaximum": 9}),
    "multiple": objects(a={"type": "integer", "minimum": 0, "maximum": 1000, "multipleOf": 25}),
    "boolean": objects(yes={"type": "boolean"}, no={"type": "null"}),
    "lengths": objects(short={"type": "string", "minLength": 2, "maxLength": 4}, exact={"type": "string", "minLength": 6, "maxLength": 6}),
    "pattern": objects(plate={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    "patterns": objects(a={"type": "string", "pattern": "^(ab|cd)+$", "maxLength": 8}, b={"type": "string", "pattern": "[0-9]$", "maxLength": 8}),
    "names": objects(None, **{"a b": TEXT, "\u00fc": COUNT, 'quote"': {"type": "boolean"}, "slash/": {"type": "null"}}),
    # Enums
    "enum": objects(colour={"enum": ["red", "green", "blue"]}),
    "enum of everything": objects(value={"enum": ["one", 2, 3.5, True, None, ["a"], {"b": 1}]}),
    "const": objects(version={"const": 3}, kind={"const": "note"}),
    "enum alone": {"enum": ["yes", "no"]},
    "long enum": objects(word={"enum": [f"word{number}" for number in range(200)]}),
    "enum and type": objects(level={"type": "integer", "enum": [1, 2, 3]}),
    # Nested
    "nested": objects(user=objects(name=TEXT, address=ADDRESS), active={"type": "boolean"}),
    "deep": objects(a=objects(b=objects(c=objects(d=objects(e=COUNT))))),
    "beside": objects(first=objects(a=COUNT), second=objects(a=COUNT), third=objects(a=COUNT)),
    "optional inside": objects(["a"], a=objects([], x=COUNT, y=TEXT), b=objects([], z=COUNT)),
    # Arrays
    "list": arrays(COUNT, 2, 5),
    "strings": objects(tags=arrays(TEXT, 1, 3)),
    "matrix": arrays(arrays(COUNT, 2, 2), 2, 2),
    "objects in a list": objects(items=arrays(objects(id=COUNT, name=TEXT), 1, 2)),
    "tuple": {"type": "array", "prefixItems": [TEXT, COUNT, {"type": "boolean"}], "items": False, "minItems": 3},
    "tuple and more": {"type": "array", "prefixItems": [TEXT], "items": COUNT, "minItems": 2, "maxItems": 4},
    "empty list": objects(none={"type": "array", "items": TEXT, "maxItems": 0}),
    # Formats
    "date": formats("date"),
    "time": formats("time"),
    "date-time": formats("date-time"),
    "uuid": formats("uuid"),
    "email": formats("email"),
    "ipv4": formats("ipv4"),
    "hostname": formats("hostname"),
    # References
    "ref": {"$defs": {"address": ADDRESS}} | objects(home={"$ref": "#/$defs/address"}, work={"$ref": "#/$defs/address"}),
    "definitions": {"definitions": {"count": COUNT}} | objects(a={"$ref": "#/definitions/count"}, b=arrays({"$ref": "#/definitions/count"})),
    "ref to ref": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": COUNT}} | objects(x={"$ref": "#/$defs/a"}),
    # Recursion
    "tree": {"$defs": {"tree": TREE}, "$ref": "#/$defs/tree"},
    "linked": {"$defs": {"list": LINKED}, "$ref": "#/$defs/list"},
    "expression": {"$defs": {"expression": EXPRESSION}, "$ref": "#/$defs/expression"},
    # Alternatives
    "any of types": objects(value={"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "null"}]}),
    "list of types": objects(value={"type": ["string", "null", "integer"], "maxLength": 12}),
    "shapes": SHAPES,
    "list of shapes": arrays(SHAPES, 1, 2),
    "all of": {"allOf": [{"type": "object", "properties": {"a": COUNT}, "required": ["a"]}, {"properties": {"b": TEXT}, "required": ["b"]}]},
    # Open objects
    "map": {"type": "object", "additionalProperties": COUNT, "maxProperties": 3},
    "pattern properties": {"type": "object", "patternProperties": {"^x_[a-c]$": COUNT}, "additionalProperties": False},
    "tool call": objects(
        name={"enum": ["add", "multiply"]},
        arguments=objects(a={"type": "number"}, b={"type": "number"}),
        note={"type": ["string", "null"], "maxLength": 20},
    ),
}

_DATE, _TIME = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)"
WRITTEN = {"date": _DATE, "time": _TIME, "date-time": f"{_DATE}[Tt ]{_TIME}"}
"""Dates and times are right as they are written; that there is such a day no grammar knows."""
CHECKED = jsonschema.FormatChecker(["uuid", "email", "ipv4"])


def check(text: str, name: str) -> None:
    """Fails unless `text` is valid by the schema of that name."""
    value = json.loads(text)
    jsonschema.validate(value, SCHEMAS[name], format_checker=CHECKED)
    if name in WRITTEN:
        assert re.fullmatch(WRITTEN[name], value["value"]), text
