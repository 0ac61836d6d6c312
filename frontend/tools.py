"""The tools of a request: what they may look like, which of them are offered, and how the answer is to be read."""

import re
from typing import Any

import msgspec

from dialects.registry import REASONING, TOOLS, Tools
from frontend.core import Core
from frontend.errors import invalid
from frontend.field_names import CHAT, FieldNames
from frontend.reading import Reading
from frontend.refusals import strip
from frontend.schema_fault import fault

MAX_TOOL_BYTES = 256 << 10
"""Of all tools together, as they travel."""
MAX_TEMPLATE_BYTES = 64 << 10
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
FUNCTION_FIELDS = ("name", "description", "parameters", "strict")
_FIELDS: dict[str, Any] = {"name": "", "description": "", "parameters": {"type": "object", "properties": {}}}


def offered(tools: list[dict[str, Any]], names: FieldNames = CHAT) -> Tools:
    """Name to the JSON Schema of the parameters. Raises ApiError 400 that names the tool and the field as the API does."""
    found: dict[str, dict[str, Any]] = {}
    for number, tool in enumerate(tools):
        where = f"tools[{number}]"
        fields = strip(tool, ("type", "function"), {}, f"{where}.")
        if fields.get("type") != "function" or not isinstance(fields.get("function"), dict):
            raise invalid(f'{where} must be like {{"type": "function", "function": {{...}}}}; no other type is supported.', where)
        where += names.function
        name, parameters = check_function(strip(fields["function"], FUNCTION_FIELDS, {}, f"{where}."), where, names.parameters)
        if name in found:
            raise invalid(f"{where}.name: {name!r} is there twice.", f"{where}.name")
        found[name] = parameters
    return found


def check_function(fields: dict[str, Any], where: str, of_schema: str = CHAT.parameters) -> tuple[str, dict[str, Any]]:
    """The name of a function and the JSON Schema of its parameters; `fields` are of FUNCTION_FIELDS, and `of_schema` is the client's name of that.

    Raises ApiError 400.
    """
    of_schema = f"{where}.{of_schema}"
    name, parameters = fields.get("name"), fields.get("parameters", {})
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise invalid(f"{where}.name must be 1 to 64 letters, digits, '_', '-', '.' and ':'.", f"{where}.name")
    if not isinstance(fields.get("description", ""), str):
        raise invalid(f"{where}.description must be text.", f"{where}.description")
    if not isinstance(fields.get("strict", False), bool):
        raise invalid(f"{where}.strict must be true or false.", f"{where}.strict")
    if not isinstance(parameters, dict) or parameters.get("type", "object") != "object":
        raise invalid(f"{of_schema} must be a JSON Schema of an object.", of_schema)
    if (wrong := fault(parameters)) is not None:
        raise invalid(f"{of_schema}{wrong[0]} {wrong[1]}.", of_schema + wrong[0])
    return name, parameters


def packed_tools(tools: list[dict[str, Any]]) -> list[msgspec.Raw]:
    """As they travel to the tokenizer, with the fields that templates rely on. Raises ApiError 400 when they are too large."""
    functions = ({name: default if (value := tool["function"].get(name)) is None else value for name, default in _FIELDS.items()} for tool in tools)
    packed = [_packed({"type": "function", "function": function}, "tools") for function in functions]
    if sum(memoryview(tool).nbytes for tool in packed) > MAX_TOOL_BYTES:
        raise invalid(f"tools are larger than {MAX_TOOL_BYTES} bytes.", "tools")
    return packed


def packed_variables(variables: dict[str, Any]) -> dict[str, msgspec.Raw]:
    """As they travel to the tokenizer. Raises ApiError 400 for names that a template uses otherwise, or cannot use, and when they are too large."""
    for name in variables:
        if not VARIABLE.fullmatch(name) or name in RESERVED or name.endswith("_token"):
            raise invalid(f"chat_template_kwargs: {name[:64]!r} cannot be set.", "chat_template_kwargs")
    packed = {name: _packed(value, "chat_template_kwargs") for name, value in variables.items()}
    if sum(memoryview(value).nbytes for value in packed.values()) > MAX_TEMPLATE_BYTES:
        raise invalid(f"chat_template_kwargs are larger than {MAX_TEMPLATE_BYTES} bytes.", "chat_template_kwargs")
    return packed


def _packed(value: Any, param: str) -> msgspec.Raw:
    try:
        return msgspec.Raw(msgspec.msgpack.encode(value))
    except (OverflowError, RecursionError) as error:
        raise invalid(f"{param}: a number in it is too large, or it is nested too deeply.", param) from error


def reading(core: Core, tools: Tools, parallel: bool, budget: int | None, reasons: bool, names: FieldNames = CHAT) -> Reading | None:
    """How an answer is to be read; None for one that is content as it is. `reasons`: it may. Raises ApiError 400 for what the model has no way of
    writing."""
    calls, reasoning = TOOLS.get(core.view.tool_parser), REASONING.get(core.view.reasoning_parser) if reasons else None
    if tools and calls is None:
        sentence = "It is not known how this model writes tool calls; start the server with --tool-parser to say it."
        raise invalid(sentence, "tools", "tools_not_supported")
    if budget is not None and reasoning is None:
        why = "this model is not known to reason before it answers" if reasons else "an answer of this form has no reasoning"
        raise invalid(f"{names.budget}: {why}.", names.budget, "unsupported_parameter")
    if not tools and reasoning is None:
        return None
    return Reading(calls if tools else None, tools, reasoning, single=bool(tools) and not parallel, budget=budget)


def variables(core: Core, given: dict[str, Any], thinks: bool | None, param: str) -> dict[str, msgspec.Raw]:
    """Those of the template, as they travel: what is `given`, and what turns reasoning on or off. Raises ApiError 400."""
    return packed_variables(switched(core, given, thinks, param))


def switched(core: Core, given: dict[str, Any], thinks: bool | None, param: str) -> dict[str, Any]:
    """The same, not packed."""
    if thinks is None:
        return given
    switch = core.view.thinking_switch
    if switch in given and bool(given[switch]) != thinks:
        raise invalid(f"{param} and chat_template_kwargs.{switch} contradict each other; leave one out.", param)
    return _switched(core, thinks, param) | given


def _switched(core: Core, on: bool, param: str) -> dict[str, Any]:
    """The template's variables that turn reasoning on or off. Raises ApiError 400 when that is not how this model is."""
    reasons, switch = core.view.reasoning_parser in REASONING, core.view.thinking_switch
    if on and not reasons:
        raise invalid(f"{param}: this model is not known to reason before it answers.", param, "unsupported_parameter")
    if not on and reasons and not switch:
        raise invalid(f"{param}: the reasoning of this model cannot be turned off.", param, "unsupported_parameter")
    return {switch: on} if reasons and switch else {}
