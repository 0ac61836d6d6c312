"""The form that an answer must have, in the words of OpenAI's API and of vLLM's."""

from typing import Annotated, Any, Literal

import msgspec

from frontend.errors import invalid
from messages.constraint import MAX_CHOICES, MAX_TEXT, Constraint, ConstraintKind

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]
Choices = Annotated[list[Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TEXT)]], msgspec.Meta(min_length=1, max_length=MAX_CHOICES)]
Schema = dict[str, Any] | Text


class JsonSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`name` and `description` change nothing, nor does `strict`: the schema is always kept to."""

    schema: dict[str, Any] | None = None
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`response_format`. `json_schema` goes with the type of that name."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`structured_outputs`, one of: a JSON Schema, a regular expression, choices, a Lark grammar, any JSON object."""

    json: Schema | None = None
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None


class Forms(msgspec.Struct, kw_only=True):
    """The fields of a request that say which form its answer must have: at most one of them. `guided_*` are older names for `structured_outputs`."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None

    def constraint(self, form: str = "") -> Constraint | None:
        """None when any answer will do. `form`: an API's name of `response_format`, with the schema in its field `schema`. Raises ApiError 400."""
        found = [*_of_format(self.response_format, form), *_of_structured(self.structured_outputs)]
        guided: dict[str, tuple[ConstraintKind, Any]] = {
            "guided_json": ("json_schema", self.guided_json),
            "guided_regex": ("regex", self.guided_regex),
            "guided_choice": ("choice", self.guided_choice),
            "guided_grammar": ("lark", self.guided_grammar),
        }
        found += [_constraint(kind, value, param) for param, (kind, value) in guided.items() if value is not None]
        if len(found) > 1:
            raise invalid(f"{found[0].param} and {found[1].param} say each which form the answer is to have; leave one out.", found[1].param)
        return found[0] if found else None


def _of_format(wanted: ResponseFormat | None, form: str) -> list[Constraint]:
    if wanted is None or wanted.type == "text":
        return []
    param, within = (form, "schema") if form else ("response_format", "json_schema.schema")
    if wanted.type == "json_object":
        return [Constraint("json_object", param=param)]
    if wanted.json_schema is None or wanted.json_schema.schema is None:
        raise invalid(f"{param}: {within} is required with this type.", param)
    return [_constraint("json_schema", wanted.json_schema.schema, param, f".{within}")]


def _of_structured(wanted: StructuredOutputs | None) -> list[Constraint]:
    if wanted is None:
        return []
    param = "structured_outputs"
    kinds: list[tuple[ConstraintKind, str, Any]] = [
        ("json_schema", "json", wanted.json),
        ("regex", "regex", wanted.regex),
        ("choice", "choice", wanted.choice),
        ("lark", "grammar", wanted.grammar),
        ("json_object", "json_object", wanted.json_object or None),
    ]
    found = [_constraint(kind, value, param, f".{name}") for kind, name, value in kinds if value is not None]
    if len(found) != 1:
        raise invalid("structured_outputs must have one of json, regex, choice, grammar and json_object.", param)
    return found


def _constraint(kind: ConstraintKind, value: Any, param: str, within: str = "") -> Constraint:
    """`within`: the path in the field `param`."""
    if kind == "json_object":
        return Constraint(kind, param=param)
    try:
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except RecursionError as error:
        raise invalid(f"{param} is nested too deeply.", param) from error
    if len(text) > MAX_TEXT:
        raise invalid(f"{param} has {len(text)} characters; the limit is {MAX_TEXT}.", param)
    return Constraint(kind, text, param, param + within)
