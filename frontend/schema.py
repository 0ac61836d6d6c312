"""Request bodies of the endpoints: the fields that are honoured, with their bounds. `frontend.bodies` decodes into these."""

from typing import Annotated, Any

import msgspec

from frontend.errors import invalid
from messages.request import TokenId
from messages.sampling import MAX_TOP_LOGPROBS, Probability, SamplingParams, StopRules, Temperature

MAX_CHOICES = 64
MAX_STOP_STRINGS = 16
DEFAULT_COMPLETION_TOKENS = 16

StopString = Annotated[str, msgspec.Meta(min_length=1)]
Stop = StopString | Annotated[list[StopString], msgspec.Meta(max_length=MAX_STOP_STRINGS)]
Penalty = Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)]
TokenLimit = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
TopLogprobs = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOP_LOGPROBS)]
TopK = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
Seed = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Messages = Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`include_obfuscation` and `continuous_usage_stats` are accepted at false only."""

    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False


class GenerationRequest(msgspec.Struct, kw_only=True):
    """What chat and completions share. Defaults are OpenAI's; nothing is taken from a model's generation_config.

    `seed` is 0 to 2**63 - 1: what a sampler is seeded with has 63 bits, and two seeds must never be one. `stream_options` needs `stream`.
    """

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Temperature = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    top_k: TopK = 0
    min_p: Probability = 0.0
    seed: Seed | None = None
    max_tokens: TokenLimit | None = None
    stop: Stop = msgspec.field(default_factory=list)
    stop_token_ids: Annotated[list[TokenId], msgspec.Meta(max_length=1024)] = []
    n: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHOICES)] = 1
    ignore_eos: bool = False
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    cache_salt: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None

    @property
    def with_usage(self) -> bool:
        """The stream ends with a chunk of usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def check_stream_options(self) -> None:
        """Raises ApiError 400 for options without a stream and for those that are not honoured."""
        options = self.stream_options
        if options is None:
            return
        if not self.stream:
            raise invalid("stream_options needs stream to be true.", "stream_options")
        if options.include_obfuscation or options.continuous_usage_stats:
            message = "stream_options: include_obfuscation and continuous_usage_stats are not supported; leave them out."
            raise invalid(message, "stream_options", "unsupported_parameter")

    def sampling(self, logprobs: int) -> SamplingParams:
        """`logprobs` as in SamplingParams: -1 for none, else the number of alternatives."""
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logprobs=logprobs,
        )

    def stop_rules(self, max_tokens: int | None) -> StopRules:
        return StopRules(
            max_tokens=max_tokens,
            token_ids=self.stop_token_ids,
            strings=[self.stop] if isinstance(self.stop, str) else self.stop,
            include_stop_string=self.include_stop_str_in_output,
            ignore_eos=self.ignore_eos,
        )


class ChatRequest(GenerationRequest, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs = 0
    add_generation_prompt: bool = True


class CompletionRequest(GenerationRequest, kw_only=True):
    """POST /v1/completions. `prompt`: a string, token ids, or a list of either."""

    prompt: Any
    logprobs: TopLogprobs | None = None
    echo: bool = False
    best_of: Annotated[int, msgspec.Meta(ge=1)] | None = None
    add_special_tokens: bool = True


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /tokenize. One of `prompt` and `messages`. `add_special_tokens` is true for prompts and only false for messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[TokenId]
