"""How an offline request is sampled and ended: the request fields of the HTTP API under their own names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Fields left at None are not sent, so that the server's defaults apply. Bounds are the server's; it names the field it refuses.

    temperature 0 is greedy. `max_tokens` None: chat runs to the context limit, plain completions to 16 tokens, as in OpenAI's API.
    `logprobs` is the number of alternatives per token (0: only the chosen token's). `structured_outputs` and `response_format` say which form
    the answer must have, one of them: `{"json": SCHEMA}`, `{"regex": "[0-9]+"}`, `{"choice": ["yes", "no"]}`, `{"grammar": LARK}`.
    """

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    n: int | None = None
    ignore_eos: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logprobs: int | None = None
    min_tokens: int | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    response_format: Mapping[str, Any] | None = None
    structured_outputs: Mapping[str, Any] | None = None

    def body(self, chat: bool) -> dict[str, Any]:
        """The request fields. Chat spells logprobs as a flag and `top_logprobs`."""
        given = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        if chat and "logprobs" in given:
            given |= {"logprobs": True, "top_logprobs": given["logprobs"]}
        return given
