"""Which of its tools a model is told of, and which calls it must or may make: the field `tool_choice`, and tools that are `strict`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dialects.constraint import TooLongError, Wanted, grammar_of
from dialects.registry import REASONING, TOOLS, Tools
from frontend import tools
from frontend.core import Core
from frontend.errors import invalid
from frontend.field_names import CHAT, FieldNames
from messages.constraint import MAX_TEXT, Constraint

NONE, AUTO, REQUIRED = "none", "auto", "required"


@dataclass(frozen=True)
class Choice:
    """`told`: the tools as the model is told of them. `forced`: a call must come, of one of `callable`. `strict`: names of tools whose calls fit
    their schemas. `places`: of the schemas in the request, by name."""

    told: list[dict[str, Any]]
    callable: Tools
    forced: bool
    strict: frozenset[str]
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def checked(self) -> bool:
        """A grammar sees to the calls."""
        return bool(self.callable) and (self.forced or bool(self.strict))


def choice_of(given: list[dict[str, Any]], choice: str | dict[str, Any] | None, names: FieldNames = CHAT) -> Choice:
    """Raises ApiError 400 for tools that cannot be used and choices that there are not."""
    offered = tools.offered(given, names)
    places = {name: f"tools[{number}]{names.function}.{names.parameters}" for number, name in enumerate(offered)}
    strict = frozenset(tool["function"]["name"] for tool in given if tool["function"].get("strict"))
    if choice == NONE:
        return Choice([], {}, False, frozenset())
    if choice is None or choice == AUTO:
        return Choice(given, offered, False, strict, places)
    if not given:
        raise invalid("tool_choice: there are no tools to call.", "tool_choice")
    if choice == REQUIRED:
        return Choice(given, offered, True, strict, places)
    name = _name(choice)
    if name not in offered:
        raise invalid(f"tool_choice: there is no tool {str(name)[:64]!r}.", "tool_choice")
    return Choice(given, {name: offered[name]}, True, strict, places)


def _name(choice: str | dict[str, Any]) -> str:
    function = choice.get("function") if isinstance(choice, dict) and choice.keys() == {"type", "function"} else None
    if not isinstance(function, dict) or function.keys() != {"name"} or not isinstance(choice, dict) or choice["type"] != "function":
        sentence = 'tool_choice must be "auto", "none", "required" or {"type": "function", "function": {"name": "..."}}.'
        raise invalid(sentence, "tool_choice")
    return str(function["name"])


def constraint(core: Core, choice: Choice, several: bool, variables: dict[str, Any]) -> Constraint | None:
    """The grammar of the answer, where calls are checked. `variables`: of the template. Raises ApiError 400 for schemas that are too large
    or nested too deeply."""
    if not choice.checked or core.view.tool_parser not in TOOLS:
        return None
    view = core.view
    schemas = {name: schema if choice.forced or name in choice.strict else {} for name, schema in choice.callable.items()}
    wanted = Wanted(schemas, choice.forced, several, view.marker_ids, choice.places)
    inside = view.opens_reasoning(variables.get(view.thinking_switch))
    try:
        text = grammar_of(view.tool_parser, wanted, REASONING.get(view.reasoning_parser), inside, MAX_TEXT)
    except RecursionError as error:
        raise invalid("tools: a schema is nested too deeply.", "tools") from error
    except TooLongError as error:
        raise invalid(f"tools: as a grammar their schemas have more than {MAX_TEXT} characters, which is the limit.", "tools") from error
    return Constraint("lark", text, "tools")
