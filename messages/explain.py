"""Where running sequences are: a question from a frontend, passed on by a tokenizer process to the scheduler, and its answer on the way back."""

from typing import Annotated

import msgspec

from messages.key import Key

MAX_KEYS = 256
"""Keys of one question: a step is never held up by more."""

WAITING, PREFILL, DECODE = "waiting", "prefill", "decode"

# What a sequence in the line waits for: others before it; a slot; KV blocks; room in a step; another sequence that computes its prefix; a worker.
TURN, SLOT, BLOCKS, TOKENS, PREFIX, WORKER = "turn", "slot", "blocks", "tokens", "prefix", "worker"


class Explain(msgspec.Struct, frozen=True, kw_only=True, tag="explain"):
    """Where are these sequences? Answered with one `Explained` of the same `key`, which names the question.

    `tokenizer` is filled in on the way: the process that passes the question on and the answer back to `frontend`.
    """

    key: Key
    frontend: str
    keys: Annotated[list[Key], msgspec.Meta(max_length=MAX_KEYS)]
    tokenizer: str = ""


class Standing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence as the scheduler sees it.

    `state` is WAITING, PREFILL or DECODE. `place` (1 = next) and `waits_for` are set in the line only. `cached_tokens` of the prompt came
    from the prefix cache at its first admission; `computed_tokens` are the positions whose keys and values are in its blocks or in a plan
    sent, cached ones included (0 after a preemption). `first_token_seconds` is the predicted time from now, None when it has a token or
    nothing was measured yet.
    """

    key: Key
    state: str
    prompt_tokens: int
    generated_tokens: int = 0
    computed_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    place: int | None = None
    waits_for: str | None = None
    first_token_seconds: float | None = None


class Explained(msgspec.Struct, frozen=True, kw_only=True, tag="explained"):
    """The answer to the question `key` of `frontend`. A sequence the scheduler does not know (not yet, or no more) is left out."""

    key: Key
    frontend: str
    standings: list[Standing]
