"""The response object, as OpenAI's Responses API has it."""

from typing import Any

import msgspec

from frontend.responses.items import Item
from frontend.streams import Run

QUEUED, IN_PROGRESS, COMPLETED, INCOMPLETE, FAILED, CANCELLED = "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
UNFINISHED = (QUEUED, IN_PROGRESS)


class Failure(msgspec.Struct):
    """Why it failed; `code` is that of the error which another route would answer with."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: str


class InputTokensDetails(msgspec.Struct):
    """`cache_write_tokens` is always 0: what is written to the cache is not counted by request."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class TextFormat(msgspec.Struct):
    type: str = "text"


class TextSettings(msgspec.Struct):
    format: TextFormat = msgspec.field(default_factory=TextFormat)
    verbosity: str = "medium"


class ReasoningSettings(msgspec.Struct):
    effort: None = None
    summary: None = None


class ResponseBody(msgspec.Struct, kw_only=True):
    """Times are UNIX seconds. `temperature` and `top_p` are those that count, whoever has set them. `usage` is known once it has ended well."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool
    error: Failure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: None = None
    metadata: dict[str, str]
    model: str
    output: list[Item] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None
    reasoning: ReasoningSettings = msgspec.field(default_factory=ReasoningSettings)
    service_tier: str = "default"
    store: bool
    temperature: float
    text: TextSettings = msgspec.field(default_factory=TextSettings)
    tool_choice: str = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None


class DeletedBody(msgspec.Struct):
    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct, kw_only=True):
    """`has_more`: there are further ones in the direction that was asked for."""

    object: str = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


def usage(run: Run) -> ResponseUsage:
    """Of a run that has ended well."""
    prompt, completion = run.prompt_tokens, run.completion_tokens
    return ResponseUsage(prompt, InputTokensDetails(run.cached_tokens), completion, OutputTokensDetails(), prompt + completion)
