"""How an API names what a chat request has, for errors about it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FieldNames:
    """`function`: the path from a tool to what it does, and `parameters` the field there with its schema. `thinking`: what turns reasoning on or off;
    `budget`: what bounds it. `form`: of the answer, where it is no field of chat; its schema is in its field `schema`."""

    function: str = ".function"
    parameters: str = "parameters"
    thinking: str = "reasoning_effort"
    budget: str = "thinking_budget"
    form: str = ""


CHAT = FieldNames()
RESPONSES = FieldNames("", "parameters", "reasoning", form="text.format")
ANTHROPIC = FieldNames("", "input_schema", "thinking", "thinking.budget_tokens", "output_config.format")
