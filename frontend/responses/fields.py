"""Fields of POST /v1/responses that have fields of their own: tools, which of them are called, the text's form, reasoning."""

from typing import Any, Literal

import msgspec

from frontend import tools
from frontend.effort import BUDGETS
from frontend.errors import invalid
from frontend.refusals import FUNCTION_TOOL, strip
from frontend.responses.body import FunctionChoice, ReasoningSettings, TextFormat, TextSettings
from frontend.tool_choice import AUTO, NONE, REQUIRED

LOGPROBS = "message.output_text.logprobs"
UNSUPPORTED = "unsupported_parameter"


class AskedFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`text.format`. The others go with the type json_schema; `description` and `strict` change nothing: the schema is always kept to."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None

    def format(self) -> TextFormat:
        """Raises ApiError 400."""
        if self.type != "json_schema":
            if any(value is not None for value in (self.name, self.description, self.schema, self.strict)):
                raise invalid("text.format: name, description, schema and strict go with the type json_schema.", "text.format")
            return TextFormat(self.type)
        if self.schema is None:
            raise invalid("text.format.schema is required with this type.", "text.format.schema", "missing_parameter")
        return TextFormat(self.type, self.name or "", self.description, raw(self.schema, "text.format.schema"), self.strict)


class AskedText(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`text`. How wordy an answer is, is the model's business: `verbosity` is taken at medium only."""

    format: AskedFormat | None = None
    verbosity: Literal["medium"] | None = None

    def settings(self) -> TextSettings:
        """Raises ApiError 400."""
        return TextSettings() if self.format is None else TextSettings(self.format.format())


class AskedReasoning(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`reasoning`. Its text is answered as it is, so that `summary` and the older `generate_summary` must be null."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None
    context: None = None
    mode: None = None

    def settings(self) -> ReasoningSettings:
        """Raises ApiError 400."""
        if self.summary is not None or self.generate_summary is not None:
            raise invalid("reasoning.summary: there are no summaries; the reasoning itself is in the output.", "reasoning.summary", UNSUPPORTED)
        known = next((effort for effort in BUDGETS if effort == self.effort), None)
        if self.effort is not None and known is None:
            raise invalid(f"reasoning.effort must be one of {', '.join(BUDGETS)}, of which high has no limit.", "reasoning.effort", UNSUPPORTED)
        return ReasoningSettings(known)


def function_tools(given: list[dict[str, Any]]) -> list[msgspec.Raw]:
    """As they are answered and kept. Raises ApiError 400, which names the tool and the field."""
    return [_function_tool(tool, f"tools[{number}]") for number, tool in enumerate(given)]


def _function_tool(tool: dict[str, Any], where: str) -> msgspec.Raw:
    kind = tool.get("type")
    if kind != "function":
        raise invalid(f'{where}.type: {str(kind)[:64]!r} is no tool of this server; it may be "function".', f"{where}.type", UNSUPPORTED)
    fields = strip({name: value for name, value in tool.items() if name != "type"}, tools.FUNCTION_FIELDS, FUNCTION_TOOL, f"{where}.")
    tools.check_function(fields, where)
    shown = {"name": fields["name"], "description": fields.get("description"), "parameters": fields.get("parameters")}
    return raw({"type": kind, **shown, "strict": fields.get("strict", False)}, "tools")


def choice(given: str | dict[str, Any] | None) -> str | FunctionChoice:
    """`tool_choice`. Raises ApiError 400."""
    if given is None or given in (AUTO, NONE, REQUIRED):
        return AUTO if given is None else str(given)
    if isinstance(given, dict) and given.keys() == {"type", "name"} and given["type"] == "function" and isinstance(given["name"], str):
        return FunctionChoice(given["name"])
    raise invalid('tool_choice must be "auto", "none", "required" or {"type": "function", "name": "..."}.', "tool_choice")


def wants_logprobs(include: list[str]) -> bool:
    """Raises ApiError 400 for anything else in `include`."""
    for name in include:
        if name == "reasoning.encrypted_content":
            raise invalid("include: reasoning is answered in the clear, so that there is none to encrypt.", "include", UNSUPPORTED)
        if name != LOGPROBS:
            raise invalid(f"include: {name[:64]!r} is not supported; it may be {LOGPROBS!r}.", "include", UNSUPPORTED)
    return bool(include)


def read(json: msgspec.Raw, param: str) -> dict[str, Any]:
    """What `raw` was made of. Raises ApiError 400."""
    try:
        found: dict[str, Any] = msgspec.json.decode(json)
    except RecursionError as error:
        raise invalid(f"{param}: it is nested too deeply.", param) from error
    return found


def raw(value: Any, param: str) -> msgspec.Raw:
    """JSON that is kept as it is. Raises ApiError 400 for what cannot be."""
    try:
        return msgspec.Raw(msgspec.json.encode(value))
    except (OverflowError, RecursionError) as error:
        raise invalid(f"{param}: a number in it is too large, or it is nested too deeply.", param) from error
