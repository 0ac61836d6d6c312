"""What the scheduler is asked to run for a prompt that has been encoded."""

from dataclasses import dataclass

import msgspec

from messages.admit import Admit
from messages.key import Key
from messages.request import Generate
from messages.sampling import SamplingParams


@dataclass(frozen=True)
class Encoded:
    """A prompt ready to be admitted: its `ids`, also as a `column`, its text where it is to be echoed, the bad words as tokens."""

    ids: list[int]
    column: bytes
    echo: str
    banned: list[list[int]]


def admits(tokenizer: str, request: Generate, keys: list[Key], encoded: Encoded, end_ids: list[int]) -> list[Admit]:
    """Of those `keys` of `request` that are still wanted. Without room for an answer one token is generated, and not said."""
    seed_of = dict(zip(request.keys, request.seeds, strict=True))
    return [
        Admit(
            tokenizer=tokenizer,
            keys=part,
            seeds=[seed_of[key] for key in part],
            prompt=encoded.column,
            sampling=sampling,
            end_ids=end_ids,
            max_tokens=1 if request.stop.max_tokens == 0 else request.stop.max_tokens,
            priority=request.priority,
            tenant=request.tenant,
            cache_salt=request.cache_salt,
            constraints=request.constraints,
            banned=encoded.banned,
            pooling=request.pooling,
        )
        for part, sampling in _parts(request, keys)
    ]


def _parts(request: Generate, keys: list[Key]) -> list[tuple[list[Key], SamplingParams]]:
    """Those that need no logprobs of the prompt apart from the one that does: they may use and feed the prefix cache."""
    sampling = request.sampling
    if not request.score_first or sampling.prompt_logprobs < 0:
        return [(keys, sampling)]
    scored = [key for key in keys if key == request.keys[0]]
    parts = [(scored, sampling), (keys[len(scored) :], msgspec.structs.replace(sampling, prompt_logprobs=-1))]
    return [(part, sampling) for part, sampling in parts if part]
