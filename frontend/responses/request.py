"""The body of POST /v1/responses, and what is asked of the engine for it."""

from typing import Annotated, Any

import msgspec

from frontend import effort
from frontend.core import Core
from frontend.errors import invalid
from frontend.generation import message_of
from frontend.responses import fields
from frontend.responses.asking import chat_of, job_of
from frontend.responses.body import ResponseBody
from frontend.responses.items import Item
from frontend.responses.status import IN_PROGRESS, QUEUED
from frontend.responses.turns import turns
from frontend.schema import OPENAI_DEFAULTS, GenerationRequest, Penalty, Seed, Stop, Timeout, TokenLimit, ToolChoice, Tools, TopK, TopLogprobs
from messages.request import Generate
from messages.sampling import Probability, Temperature

MetadataName = Annotated[str, msgspec.Meta(max_length=64)]
MetadataValue = Annotated[str, msgspec.Meta(max_length=512)]


class ResponseStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`include_obfuscation` is accepted at false only."""

    include_obfuscation: bool | None = False


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """POST /v1/responses. `input`: a string, or a list of items. What OpenAI's API does not have is as in the other routes."""

    input: Any
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: TokenLimit | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] | None = None
    seed: Seed | None = None
    stop: Stop = msgspec.field(default_factory=list)
    ignore_eos: bool = False
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    store: bool = True
    background: bool = False
    tools: Tools = msgspec.field(default_factory=list)
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool = True
    text: fields.AskedText | None = None
    reasoning: fields.AskedReasoning | None = None
    thinking_budget: TokenLimit | None = None
    include: Annotated[list[str], msgspec.Meta(max_length=16)] = msgspec.field(default_factory=list)
    top_logprobs: TopLogprobs = 0
    metadata: Annotated[dict[MetadataName, MetadataValue], msgspec.Meta(max_length=16)] = {}
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    cache_salt: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    timeout: Timeout | None = None

    def check(self) -> None:
        """What no single field shows. Raises ApiError 400."""
        if self.stream_options is not None and not self.stream:
            raise invalid("stream_options needs stream to be true.", "stream_options")
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            raise invalid("stream_options: include_obfuscation is not supported; leave it out.", "stream_options", "unsupported_parameter")
        if self.background and self.timeout is not None:
            raise invalid("timeout is not supported in the background.", "timeout", "unsupported_parameter")
        if self.background and not self.store:
            raise invalid("background needs store to be true: who comes back for the response must find it.", "background")

    def body(self, model: str) -> ResponseBody:
        """The response as it begins, but for its id, its time and what `work` finds. Raises ApiError 400."""
        body = ResponseBody(
            id="",
            created_at=0,
            status=QUEUED if self.background else IN_PROGRESS,
            background=self.background,
            instructions=self.instructions,
            max_output_tokens=self.max_output_tokens,
            metadata=self.metadata,
            model=model,
            parallel_tool_calls=self.parallel_tool_calls,
            previous_response_id=self.previous_response_id,
            store=self.store,
            temperature=OPENAI_DEFAULTS["temperature"],
            thinking_budget=self.thinking_budget,
            tool_choice=fields.choice(self.tool_choice),
            tools=fields.function_tools(self.tools),
            top_logprobs=self.top_logprobs,
            top_p=OPENAI_DEFAULTS["top_p"],
        )
        if self.text is not None:
            body.text = self.text.settings()
        if self.reasoning is not None:
            body.reasoning = self.reasoning.settings()
        self._check_reasoning(body)
        return body

    def _check_reasoning(self, body: ResponseBody) -> None:
        """What its effort means here. Raises ApiError 400 for what cannot go with it."""
        asked = body.reasoning.effort
        if asked is None or asked == effort.NONE:
            return
        if body.text.format.type != "text":
            raise invalid("reasoning.effort: an answer of this form has no reasoning.", "reasoning.effort", "unsupported_parameter")
        if body.thinking_budget is None:
            body.thinking_budget = effort.BUDGETS[asked]
        if body.thinking_budget is not None and fields.wants_logprobs(self.include):
            raise invalid("reasoning.effort: a limited reasoning and logprobs cannot be had together.", "reasoning.effort", "unsupported_parameter")

    def work(self, core: Core, body: ResponseBody, items: list[Item], tenant: str) -> Generate:
        """What is asked of the engine, without a frontend and a key, which it gets when sent. `body` is told the sampling values that count.

        Raises ApiError 400.
        """
        chat = chat_of(body, turns(self.instructions, items))
        for name in _COMMON:
            setattr(chat, name, getattr(self, name))
        chat.max_tokens, chat.logprobs, chat.top_logprobs = self.max_output_tokens, fields.wants_logprobs(self.include), self.top_logprobs
        if self.top_logprobs and not chat.logprobs:
            raise invalid(f"top_logprobs needs {fields.LOGPROBS} in include.", "top_logprobs")
        job = job_of(core, body, chat)
        chat.check(self.max_output_tokens)
        work = message_of(core, job, job.prompts[0], tenant)
        body.temperature, body.top_p = work.sampling.temperature, work.sampling.top_p
        return msgspec.structs.replace(work, frontend="", incarnation=0, keys=[])


_COMMON = tuple(
    name for name in ResponsesRequest.__struct_fields__ if name in GenerationRequest.__struct_fields__ and name not in ("model", "stream_options")
)
