"""Into a frontend from the tokenizer processes: text of running sequences and answers about text."""

from typing import Annotated

import msgspec

from messages.explain import Explained
from messages.key import Key

FINISH_STOP = "stop"
FINISH_LENGTH = "length"

# Codes of problems that overload gives.
QUEUE_FULL, QUEUE_TOO_SLOW, DEADLINE_EXCEEDED = "queue_full", "queue_too_slow", "deadline_exceeded"

INTERRUPTED = "request_interrupted"
"""The code of what a process on its way did not finish: it ended, or has lost a part of it."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was not, or not wholly, served. `status` is the HTTP status a client should see.

    `code` is a short stable word (`context_length_exceeded`, `queue_full`, `worker_lost`, ...); `param` names the request field at fault.
    `passing`: nothing is wrong with the request and all that went out of it is right; sent again, it can be served.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    retry_after: float | None = None
    passing: bool = False


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """One token and its alternatives. `piece` is the token's own bytes; `top` is (id, bytes, logprob), best first.

    `hidden`: it leaves no text. The first token of a prompt has no logprob (NaN).
    """

    token: int
    piece: bytes
    logprob: float
    top: list[tuple[int, bytes, float]]
    hidden: bool = False


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The prompt was accepted by the tokenizer: `prompt_tokens` ids. Sent once per Generate, before any delta, naming its first key.

    `opened`: it ends with the `opening` that was asked about.
    """

    key: Key
    prompt_tokens: int
    opened: bool = False


class TextDelta(msgspec.Struct, frozen=True, omit_defaults=True, tag="delta"):
    """New text of one sequence. concat(text of a key) is its whole output; never holds half a character or text later taken back.

    `ids` are the generated tokens this delta accounts for (may be more than one); `logprobs` has one entry for each of them if logprobs were asked
    for. `prompt` has the prompt's logprobs and `prompt_ids` its token ids, in the first message of a key that asked for them; `cached`, there too,
    how many prompt tokens came from the prefix cache.
    """

    key: Key
    text: str
    ids: list[int]
    logprobs: list[TokenLogprob] = []
    prompt: list[TokenLogprob] = []
    prompt_ids: list[int] = []
    cached: int = 0


class Texts(msgspec.Struct, frozen=True, tag="texts"):
    """What one step gave for many sequences of one frontend: a TextDelta with nothing but text, ids and `cached` for each of `keys`.

    `ids` (i32) is concatenated over keys, `tokens` each. `cached` names only those whose first message this is and that had a hit.
    """

    keys: list[Key]
    texts: list[str]
    tokens: list[Annotated[int, msgspec.Meta(ge=0)]]
    ids: bytes
    cached: dict[Key, int] = {}


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The first token of each of `keys` has been computed; their text comes after this. `queued` and `prefilled` as in `messages.tokens.Tokens`."""

    keys: list[Key]
    queued: bytes
    prefilled: bytes


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="ended"):
    """The last message of a key: a finish reason (`stop`, `length`) or a problem, exactly one of them. `refused`: it was never let in.

    The fields that a TextDelta has are as there. `tokens` counts `ids`. `stop_reason` is the stop string or stop token id that matched, None for an
    end token. Totals are of the whole sequence. `embedding` f32 is that of the prompt, of length 1, if one was asked for.
    """

    key: Key
    finish: str | None = None
    problem: Problem | None = None
    refused: bool = False
    text: str = ""
    tokens: int = 0
    logprobs: list[TokenLogprob] = []
    ids: list[int] = []
    prompt: list[TokenLogprob] = []
    prompt_ids: list[int] = []
    stop_reason: str | int | None = None
    completion_tokens: int = 0
    cached_tokens: int = 0
    embedding: bytes = b""


class Tokenized(msgspec.Struct, frozen=True, tag="tokenized"):
    key: Key
    ids: list[int]
    pieces: list[str] = []


class Detokenized(msgspec.Struct, frozen=True, tag="detokenized"):
    key: Key
    text: str


FromTokenizer = Started | Begun | Texts | TextDelta | Ended | Tokenized | Detokenized | Explained
