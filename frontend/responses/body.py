"""The response object, as OpenAI's Responses API has it."""

from sys import getsizeof

import msgspec

from frontend.effort import Effort
from frontend.responses.items import Item, OutputItem
from frontend.streams import Run

BODY_BYTES = 2000
"""Of memory that a response takes besides its items, events and texts, about."""


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
    """The other fields are there with the type json_schema."""

    type: str = "text"
    name: str | msgspec.UnsetType = msgspec.UNSET
    description: str | msgspec.UnsetType | None = msgspec.UNSET
    schema: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    strict: bool | msgspec.UnsetType | None = msgspec.UNSET


class TextSettings(msgspec.Struct):
    format: TextFormat = msgspec.field(default_factory=TextFormat)
    verbosity: str = "medium"


class ReasoningSettings(msgspec.Struct):
    effort: Effort | None = None
    summary: None = None


class FunctionChoice(msgspec.Struct, tag_field="type", tag="function"):
    """This function is called."""

    name: str


class ResponseBody(msgspec.Struct, kw_only=True):
    """Times are UNIX seconds. `temperature`, `top_p` and `thinking_budget` are those that count, whoever has set them. `usage` is known once it has
    ended well. What is asked of the model besides its conversation can be read from it again (see `frontend.responses.asking`)."""

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
    output: list[OutputItem] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None
    reasoning: ReasoningSettings = msgspec.field(default_factory=ReasoningSettings)
    service_tier: str = "default"
    store: bool
    temperature: float
    text: TextSettings = msgspec.field(default_factory=TextSettings)
    thinking_budget: int | None = None
    tool_choice: str | FunctionChoice = "auto"
    tools: list[msgspec.Raw] = []
    top_logprobs: int = 0
    top_p: float
    truncation: str = "disabled"
    usage: ResponseUsage | None = None

    def memory(self) -> int:
        """Bytes that it takes besides its output, about."""
        schema = self.text.format.schema
        raw = self.tools if isinstance(schema, msgspec.UnsetType) else [*self.tools, schema]
        return BODY_BYTES + getsizeof(self.instructions or "") + sum(memoryview(json).nbytes for json in raw)

    def detach(self) -> None:
        """What is raw in it no longer holds all of the JSON that it was read from."""
        self.tools = [tool.copy() for tool in self.tools]
        if not isinstance(self.text.format.schema, msgspec.UnsetType):
            self.text.format.schema = self.text.format.schema.copy()


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
    prompt, completion, thought = run.prompt_tokens, run.completion_tokens, OutputTokensDetails(run.reasoning_tokens or 0)
    return ResponseUsage(prompt, InputTokensDetails(run.cached_tokens), completion, thought, prompt + completion)
