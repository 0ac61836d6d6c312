"""Into the scheduler from the tokenizer processes: token sequences to run and to stop."""

from typing import Annotated

import msgspec

from messages.constraint import Program
from messages.explain import Explain
from messages.key import Key
from messages.request import Label, Timeout, TokenId
from messages.sampling import MAX_BAD_WORD_TOKENS, Constraints, Pooling, SamplingParams


class Admit(msgspec.Struct, frozen=True, kw_only=True, tag="admit"):
    """Run one prompt, once per key (n choices share the prompt).

    `prompt`: i32 column of token ids, at least one. `end_ids`: tokens that end a sequence (end tokens of the model unless ignored, and the
    request's stop_token_ids). `max_tokens` None means up to the context limit. Answered with rows in `messages.tokens.Tokens`, the
    last of which carries a finish, or with one `messages.tokens.Refused` per key.

    `banned`: the bad words of `constraints` as tokens, one or more each.

    `program`: the grammar that the generated tokens must follow, known to compile.

    `pooling`: the sums of hidden states that make an embedding of the prompt come in `messages.tokens.PromptScores`.

    `resumed`: the sequences ran before something between their client and the worker died. For each key an i32 column of the tokens that its client
    has; the first token sampled is the one behind them, and `index` and `max_tokens` go on counting. They were accepted once, so the caps of
    the line do not hold for them. Empty: new ones.

    `timeout`: seconds from now; sequences that have not ended by then end with a problem of status 504, wherever they are.

    `incarnation` is that of the tokenizer process: sequences of its earlier ones are over, and so is what comes late from them.

    `tenant` shares the machine fairly with other tenants. `cache_salt` and `tenant` together name the prefix cache this prompt may
    read and feed: requests that differ in either never see each other's blocks.
    """

    tokenizer: str
    incarnation: int = 0
    keys: list[Key]
    seeds: list[Key]
    prompt: bytes
    resumed: list[bytes] = []
    sampling: SamplingParams
    end_ids: list[TokenId]
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    priority: int = 0
    tenant: Label = ""
    cache_salt: Label = ""
    constraints: Constraints | None = None
    pooling: Pooling = ""
    program: Program = ""
    timeout: Timeout | None = None
    banned: list[Annotated[list[TokenId], msgspec.Meta(min_length=1, max_length=MAX_BAD_WORD_TOKENS)]] = []


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Stop these sequences in whatever state they are. Nothing is answered; unknown keys are ignored.

    `finished` tells a stop string match (counts as finished) from a client that went away (counts as cancelled).
    """

    keys: list[Key]
    finished: bool = False


FromTokenizerProc = Admit | Abort | Explain
