"""The body of POST /v1/responses, and what is asked of the engine for it."""

from typing import Annotated, Any

import msgspec

from frontend import bodies
from frontend.errors import invalid
from frontend.responses.body import IN_PROGRESS, QUEUED, ResponseBody
from frontend.responses.items import Item, chat_prompt
from frontend.schema import GenerationRequest, Penalty, Seed, Stop, Timeout, TokenLimit, TopK
from messages.request import Generate
from messages.sampling import Probability, SamplingParams, Temperature

MetadataName = Annotated[str, msgspec.Meta(max_length=64)]
MetadataValue = Annotated[str, msgspec.Meta(max_length=512)]


class ResponseStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """`include_obfuscation` is accepted at false only."""

    include_obfuscation: bool | None = False


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """POST /v1/responses. `input`: a string, or a list of messages. What OpenAI's API does not have is as in the other routes."""

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

    def _common(self) -> GenerationRequest:
        """The fields that every generating route has."""
        return GenerationRequest(
            max_tokens=self.max_output_tokens,
            **{name: getattr(self, name) for name in _COMMON},
        )

    def work(self, items: list[Item], defaults: dict[str, float], tenant: str) -> Generate:
        """What is asked of the engine, without a frontend and a key, which it gets when sent. `defaults`: the model's own of sampling fields."""
        common = self._common()
        return Generate(
            frontend="",
            keys=[],
            seeds=bodies.seeds(self.seed, 1),
            prompt=chat_prompt(self.instructions, items),
            sampling=common.sampling(defaults, -1),
            stop=common.stop_rules(self.max_output_tokens),
            priority=self.priority,
            tenant=tenant,
            cache_salt=self.cache_salt or "",
        )

    def body(self, name: str, created: int, model: str, sampling: SamplingParams) -> ResponseBody:
        """The response as it begins, under the id `name`."""
        return ResponseBody(
            id=name,
            created_at=created,
            status=QUEUED if self.background else IN_PROGRESS,
            background=self.background,
            instructions=self.instructions,
            max_output_tokens=self.max_output_tokens,
            metadata=self.metadata,
            model=model,
            previous_response_id=self.previous_response_id,
            store=self.store,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
        )


_COMMON = tuple(name for name in ResponsesRequest.__struct_fields__ if name in GenerationRequest.__struct_fields__ and name != "stream_options")
