"""How tokens are chosen and when a sequence ends: travels unchanged from the frontend to the scheduler."""

from typing import Annotated, Literal

import msgspec

Temperature = Annotated[float, msgspec.Meta(ge=0.0, le=100.0)]
Probability = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]

MAX_TOP_LOGPROBS = 20
MAX_BIASED = 1024
MAX_ALLOWED = 1024
MAX_BAD_WORDS = 256
MAX_BAD_WORD_TOKENS = 16

Pooling = Literal["", "mean", "last"]
"""What becomes of a prompt's hidden states: nothing, their mean, or the last of them alone."""
Id = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling of one sequence. Bounds are checked when the frame is decoded; the frontend names the field in its own 400.

    temperature 0 is greedy. top_k 0 is off. `logprobs` is -1 for none, else the number of top alternatives (0: only the chosen token's);
    `prompt_logprobs` is the same for the tokens of the prompt. Penalties follow OpenAI (presence, frequency: over generated tokens, subtracted) and
    HF (repetition: over prompt and generated tokens, dividing positive and multiplying negative logits). Logprobs are of the raw distribution,
    before constraints, penalties and temperature.
    """

    temperature: Temperature = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    min_p: Probability = 0.0
    presence_penalty: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)] = 0.0
    frequency_penalty: Annotated[float, msgspec.Meta(ge=-2.0, le=2.0)] = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0.0, le=100.0)] = 1.0
    logprobs: Annotated[int, msgspec.Meta(ge=-1, le=MAX_TOP_LOGPROBS)] = -1
    prompt_logprobs: Annotated[int, msgspec.Meta(ge=-1, le=MAX_TOP_LOGPROBS)] = -1


class Constraints(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which tokens one sequence may have, and how likely: applied to its logits before penalties and temperature, not to its logprobs.

    `bias` is added to the logit of a token. No token outside `allowed` is chosen, unless it is empty. End tokens are not chosen before `min_tokens`
    tokens are out, nor do stop strings end the sequence. `bad_words` are not generated; they are matched as tokens, against generated ones only.
    Where nothing is left to choose, `allowed` goes before the others.
    """

    bias: Annotated[dict[Id, float], msgspec.Meta(max_length=MAX_BIASED)] = {}
    allowed: Annotated[list[Id], msgspec.Meta(max_length=MAX_ALLOWED)] = []
    min_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] = 0
    bad_words: Annotated[list[str], msgspec.Meta(max_length=MAX_BAD_WORDS)] = []


class StopRules(msgspec.Struct, frozen=True, kw_only=True):
    """When a sequence ends besides the end tokens and the context limit.

    `max_tokens` None means: up to the context limit. `strings` are matched by the tokenizer process on the text, the rest by the scheduler.
    """

    max_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    token_ids: Annotated[list[Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]], msgspec.Meta(max_length=1024)] = []
    strings: Annotated[list[str], msgspec.Meta(max_length=64)] = []
    include_stop_string: bool = False
    ignore_eos: bool = False
