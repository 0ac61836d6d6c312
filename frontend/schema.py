"""Request bodies of the endpoints: the fields that are honoured, with their bounds. `frontend.bodies` decodes into these."""

from typing import Annotated, Any, Literal

import msgspec

from frontend import bodies
from frontend.answers import Extras
from frontend.effort import Effort
from frontend.errors import invalid
from frontend.forms import Forms
from messages.request import MAX_TOOLS, MAX_VARIABLES, TokenId
from messages.sampling import MAX_ALLOWED, MAX_TOP_LOGPROBS, Constraints, Probability, SamplingParams, StopRules, Temperature

MAX_CHOICES = 64
MAX_STOP_STRINGS = 16
MAX_BAD_WORDS = 128
DEFAULT_COMPLETION_TOKENS = 16
MAX_TIMEOUT = 86_400.0
OPENAI_DEFAULTS: dict[str, float] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
DEFAULTED = tuple(OPENAI_DEFAULTS)

StopString = Annotated[str, msgspec.Meta(min_length=1)]
BadWord = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Stop = StopString | Annotated[list[StopString], msgspec.Meta(max_length=MAX_STOP_STRINGS)]
Penalty = Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)]
TokenLimit = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
TopLogprobs = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)]
TopK = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Timeout = Annotated[float, msgspec.Meta(gt=0.0, le=MAX_TIMEOUT)]
Messages = Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]

Tools = Annotated[list[dict[str, Any]], msgspec.Meta(max_length=MAX_TOOLS)]
ToolChoice = str | dict[str, Any] | None
TemplateVariables = Annotated[dict[str, Any], msgspec.Meta(max_length=MAX_VARIABLES)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`include_obfuscation` is accepted at false only; `continuous_usage_stats` (usage so far in every chunk) needs `include_usage`."""

    include_usage: bool | None = False
    include_obfuscation: bool | None = False
    continuous_usage_stats: bool | None = False


class GenerationRequest(Forms, kw_only=True):
    """What chat and completions share. Defaults are OpenAI's, but those of the fields in DEFAULTED may be the model's.

    `seed` is 0 to 2**63 - 1: what a sampler is seeded with has 63 bits, and two seeds must never be one. `stream_options` needs `stream`.
    `timeout`: seconds from the arrival of the request to its end, at most. `truncate_prompt_tokens` -1 keeps as much of the prompt's end as leaves
    room for the answer.
    """

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None = None
    top_k: TopK | None = None
    min_p: Probability | None = None
    seed: Seed | None = None
    max_tokens: TokenLimit | None = None
    stop: Stop = msgspec.field(default_factory=list)
    stop_token_ids: Annotated[list[TokenId], msgspec.Meta(max_length=1024)] = msgspec.field(default_factory=list)
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] = 1
    ignore_eos: bool = False
    min_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    logit_bias: dict[str, float] = msgspec.field(default_factory=dict)
    allowed_token_ids: Annotated[list[TokenId], msgspec.Meta(min_length=1, max_length=MAX_ALLOWED)] | None = None
    bad_words: Annotated[list[BadWord], msgspec.Meta(max_length=MAX_BAD_WORDS)] = msgspec.field(default_factory=list)
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] | None = None
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    prompt_logprobs: TopLogprobs | None = None
    return_token_ids: bool = False
    cache_salt: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    timeout: Timeout | None = None

    def check_stream_options(self) -> None:
        """Raises ApiError 400 for options without a stream and for those that are not honoured."""
        options = self.stream_options
        if options is None:
            return
        if not self.stream:
            raise invalid("stream_options needs stream to be true.", "stream_options")
        if options.include_obfuscation:
            raise invalid("stream_options: include_obfuscation is not supported; leave it out.", "stream_options", "unsupported_parameter")
        if options.continuous_usage_stats and not options.include_usage:
            raise invalid("stream_options: continuous_usage_stats needs include_usage to be true.", "stream_options")

    def check(self, max_tokens: int | None) -> None:
        """What no single field shows. Raises ApiError 400."""
        self.check_stream_options()
        if self.stream and self.prompt_logprobs is not None:
            raise invalid("prompt_logprobs is not supported in a stream.", "prompt_logprobs", "unsupported_parameter")
        if self.truncate_prompt_tokens == 0:
            raise invalid("truncate_prompt_tokens must be -1 or at least 1.", "truncate_prompt_tokens")
        if max_tokens is not None and self.min_tokens > max_tokens:
            raise invalid(f"min_tokens must not be above max_tokens ({max_tokens}).", "min_tokens")
        if self.ignore_eos and self.constraint() is not None:
            raise invalid("ignore_eos cannot go with a form that the answer must have: nothing is left to say when it is complete.", "ignore_eos")

    def constraints(self) -> Constraints | None:
        """None when there are none. Raises ApiError 400."""
        bias = bodies.logit_bias(self.logit_bias)
        if not (bias or self.allowed_token_ids or self.min_tokens or self.bad_words):
            return None
        return Constraints(bias=bias, allowed=self.allowed_token_ids or [], min_tokens=self.min_tokens, bad_words=self.bad_words)

    def sampling(self, defaults: dict[str, float], logprobs: int, prompt_logprobs: int = -1) -> SamplingParams:
        """`logprobs` as in SamplingParams: -1 for none, else the number of alternatives; at least so many `prompt_logprobs` as well.

        `defaults` by field, where the model has its own.
        """
        chosen = {name: value for name in DEFAULTED if (value := getattr(self, name)) is not None}
        values = OPENAI_DEFAULTS | defaults | chosen
        return SamplingParams(
            temperature=values["temperature"],
            top_p=values["top_p"],
            top_k=max(int(values["top_k"]), 0),
            min_p=values["min_p"],
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=values["repetition_penalty"],
            logprobs=logprobs,
            prompt_logprobs=max(prompt_logprobs, -1 if self.prompt_logprobs is None else self.prompt_logprobs),
        )

    def extras(self) -> Extras:
        """What the answer says beyond its text."""
        return Extras(-1 if self.prompt_logprobs is None else self.prompt_logprobs, self.return_token_ids)

    def stop_rules(self, max_tokens: int | None) -> StopRules:
        return StopRules(
            max_tokens=max_tokens,
            token_ids=self.stop_token_ids,
            strings=[self.stop] if isinstance(self.stop, str) else self.stop,
            include_stop_string=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
        )


class ChatRequest(GenerationRequest, kw_only=True):
    """POST /v1/chat/completions. What tools look like is checked in `frontend.tools`."""

    messages: Messages
    tools: Tools = msgspec.field(default_factory=list)
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool = True
    thinking_budget: TokenLimit | None = None
    reasoning_effort: Effort | None = None
    chat_template_kwargs: TemplateVariables = msgspec.field(default_factory=dict)
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs = 0
    add_generation_prompt: bool = True


class CompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/completions. `prompt`: a string, token ids, or a list of either. `max_tokens` 0 only looks at the prompt."""

    prompt: Any
    max_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    logprobs: TopLogprobs | None = None
    echo: bool = False
    best_of: Annotated[int, msgspec.Meta(ge=1)] | None = None
    add_special_tokens: bool = True


class EmbeddingRequest(msgspec.Struct, kw_only=True):
    """POST /v1/embeddings. `input`: a string, token ids, or a list of either. `pooling`: what of the last hidden states is taken."""

    input: Any
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    pooling: Literal["mean", "last"] = "mean"
    add_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    timeout: Timeout | None = None


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize. One of `prompt` and `messages`. `add_special_tokens` is true for prompts and only false for messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    tools: Tools = msgspec.field(default_factory=list)
    chat_template_kwargs: TemplateVariables = msgspec.field(default_factory=dict)
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[TokenId]
