"""Into a tokenizer process from the frontends: work on text."""

from typing import Annotated

import msgspec

from messages.constraint import Constraint
from messages.explain import Explain
from messages.key import Key
from messages.sampling import Constraints, Pooling, SamplingParams, StopRules

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Timeout = Annotated[float, msgspec.Meta(ge=0.0, le=1e9)]
Label = Annotated[str, msgspec.Meta(max_length=256)]


class ChatPrompt(msgspec.Struct, frozen=True, tag="chat"):
    """Messages for the model's chat template: role and content of each, as the client sent them."""

    messages: list[dict[str, msgspec.Raw]]
    add_generation_prompt: bool = True


class TextPrompt(msgspec.Struct, frozen=True, tag="text"):
    text: str
    add_special_tokens: bool = True


class TokenPrompt(msgspec.Struct, frozen=True, tag="ids"):
    ids: list[TokenId]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


class Delivered(msgspec.Struct, frozen=True, array_like=True):
    """What the frontend has of one sequence: its generated tokens so far (i32), all of whose text it has too, and how many prompt tokens were
    cached when it first ran."""

    tokens: bytes
    cached: int = 0


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """Start one prompt. `keys` has one entry per choice (n); `seeds` (0 <= s < 2**63) is as long as `keys`.

    `stop.max_tokens` 0 generates nothing: the prompt alone is computed, for its logprobs. `truncate` keeps the last so many tokens of the prompt
    (-1: as many as fit with what is to be generated). `with_ids` asks for the token ids of prompt and answer. `pooling`
    asks for an embedding of the prompt, and `stop.max_tokens` is 0 then. `score_first`: logprobs of the prompt are of the first key alone.

    `constraint`: the form of the answer. Stop strings, stop tokens and the limits may still cut it short; the model's own end tokens cannot.

    `resumed` is as long as `keys` in a request sent again, under new keys, because a process on its way died: what follows `Delivered` comes, and
    nothing that is in it. `incarnation` is that of the frontend: what an earlier one asked for is over.

    `timeout`: seconds, when this is sent, until the request must have ended (see `messages.admit.Admit`).

    The tokenizer answers with `messages.text.Started` then deltas and one `Ended` per key, or with one `Ended` per key at once.
    """

    frontend: str
    incarnation: int = 0
    keys: list[Key]
    seeds: list[Key]
    prompt: Prompt
    resumed: list[Delivered] = []
    sampling: SamplingParams
    stop: StopRules
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] = 0
    skip_special_tokens: bool = True
    echo: bool = False
    tenant: Label = ""
    cache_salt: Label = ""
    constraints: Constraints | None = None
    constraint: Constraint | None = None
    truncate: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    with_ids: bool = False
    pooling: Pooling = ""
    score_first: bool = False
    timeout: Timeout | None = None


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """The client has gone. Unknown keys are ignored; nothing is answered."""

    keys: list[Key]


class Tokenize(msgspec.Struct, frozen=True, kw_only=True, tag="tokenize"):
    """Answered with `messages.text.Tokenized` or `messages.text.Ended` for `key`."""

    frontend: str
    key: Key
    prompt: ChatPrompt | TextPrompt
    with_text: bool = False


class Detokenize(msgspec.Struct, frozen=True, kw_only=True, tag="detokenize"):
    """Answered with `messages.text.Detokenized` or `messages.text.Ended` for `key`."""

    frontend: str
    key: Key
    ids: list[TokenId]
    skip_special_tokens: bool = False


FromFrontend = Generate | Cancel | Tokenize | Detokenize | Explain
