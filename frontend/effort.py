"""How much a model reasons, in the words of OpenAI's APIs (`reasoning_effort`, `reasoning.effort`)."""

from typing import Literal

Effort = Literal["none", "minimal", "low", "medium", "high"]
NONE: Effort = "none"
BUDGETS: dict[Effort, int | None] = {NONE: None, "minimal": 512, "low": 2048, "medium": 8192, "high": None}
"""Tokens of reasoning; with the highest there is no limit of its own."""


def thinks(effort: str | None) -> bool | None:
    """Whether the model is told to reason; None leaves it to the template."""
    return None if effort is None else effort != NONE
