"""Where running sequences are: a question from a frontend, passed on by a tokenizer process to the scheduler, and its answer on the way back."""

from typing import Annotated

import msgspec

from messages.key import Key

MAX_KEYS = 256
"""Keys of one question: a step is never held up by more."""

WAITING, PREFILL, DECODE = "waiting", "prefill", "decode"

# What a sequence in the line waits for: others before it; a slot; KV blocks; room in a step; another sequence that computes its prefix; a worker.
TURN, SLOT, BLOCKS, TOKENS, PREFIX, WORKER = "turn", "slot", "blocks", "tokens", "prefix", "worker"


MOST_LIVES, MOST_MOMENTS = 16, 64
"""Lives in one answer, and moments of one of them: a scheduler keeps no more."""
# What happens to a sequence in its life, besides waiting and decoding: see Moment.
GOT_SLOT, COMPUTED, PREEMPTED, INTERRUPTED, OMITTED = "slot", "prefill", "preempted", "interrupted", "omitted"


class Explain(msgspec.Struct, frozen=True, kw_only=True, tag="explain"):
    """Where are these sequences? Answered with one `Explained` of the same `key`, which names the question.

    `tokenizer` is filled in on the way: the process that passes the question on and the answer back to `frontend`. `lives`: what has happened to
    the first MOST_LIVES of them is wanted too, also where they have ended lately.
    """

    key: Key
    frontend: str
    keys: Annotated[list[Key], msgspec.Meta(max_length=MAX_KEYS)]
    tokenizer: str = ""
    lives: bool = False


class Standing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence as the scheduler sees it.

    `state` is WAITING, PREFILL or DECODE. `place` (1 = next) and `waits_for` are set in the line only. `cached_tokens` of the prompt came
    from the prefix cache at its first admission; `computed_tokens` are the positions whose keys and values are in its blocks or in a plan
    sent, cached ones included (0 after a preemption). `start_seconds`, until it gets a slot, and `first_token_seconds` are predicted, from now; None
    when it has one or nothing was measured yet.
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
    start_seconds: float | None = None
    first_token_seconds: float | None = None


class Moment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What happened to a sequence `at` so many seconds after it came into the line; until `until` where several `steps` are told as one.

    `what` is GOT_SLOT: it got this `slot`, and `tokens` were cached; COMPUTED: `tokens` of its prompt (after a preemption, of what it had) were sent
    to be computed; PREEMPTED: it gave up its slot to others, and INTERRUPTED: the worker ended or began anew, with `tokens` generated until then, and
    it went back into the line; OMITTED: so many moments are not kept.
    """

    what: str
    at: float
    tokens: int
    steps: int = 1
    until: float | None = None
    slot: int | None = None


class Life(msgspec.Struct, frozen=True, kw_only=True):
    """All that happened to the sequence `key`, oldest first."""

    key: Key
    moments: Annotated[list[Moment], msgspec.Meta(max_length=MOST_MOMENTS)]


class Explained(msgspec.Struct, frozen=True, kw_only=True, tag="explained"):
    """The answer to the question `key` of `frontend`. A sequence the scheduler does not know (not yet, or no more) is left out."""

    key: Key
    frontend: str
    standings: list[Standing]
    lives: Annotated[list[Life], msgspec.Meta(max_length=MOST_LIVES)] = []
