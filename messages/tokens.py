"""Into a tokenizer process from the scheduler: sampled tokens, one message per step and tokenizer."""

import msgspec

from messages.explain import Explained
from messages.key import Key
from messages.text import Problem

# Values of the `finish` column.
RUNNING, FINISH_END_TOKEN, FINISH_LENGTH, FINISH_ERROR = 0, 1, 2, 3


class LogprobColumns(msgspec.Struct, frozen=True, kw_only=True):
    """Logprobs of the rows that asked. `row`: i32 index into the token columns; `chosen`: f32.

    `count`: i32 number of alternatives of each such row; `top_ids` (i32) and `top` (f32) are concatenated, best first.
    """

    row: bytes
    chosen: bytes
    count: bytes
    top_ids: bytes
    top: bytes


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """One row per new token: `key` i64, `token` i32, `finish` u8 (RUNNING, FINISH_*), `index` i32 (0 for the first generated token).

    Tokens of a key arrive in order of `index`, each exactly once. A row with FINISH_ERROR carries no token (-1) and its problem is in
    `problems[key]`. `cached` has the prompt tokens taken from the prefix cache, for keys whose first token this is and that had a hit.

    `queued` and `prefilled` f32 have a value for each row of `index` 0, in order: seconds in the line before it first got a slot, and from then on
    to this token. They are empty in a message that only tells of the failure of a key that was never computed.
    """

    key: bytes
    token: bytes
    finish: bytes
    index: bytes
    logprobs: LogprobColumns | None = None
    problems: dict[int, Problem] = {}
    cached: dict[int, int] = {}
    queued: bytes = b""
    prefilled: bytes = b""


class PromptScores(msgspec.Struct, frozen=True, kw_only=True, tag="scores"):
    """Logprobs of the prompt tokens of `key` behind position `start`: `chosen` f32, `ranks` i32 as in `messages.result.ScoreColumns`; `top`
    alternatives of each in `top_ids` i32, `top_values` f32.

    They come in order of position, each once, before the first token of the key. For a key that pools, `states` f32 is the sum of the hidden states
    at `count` positions from `start` on, and there are no logprobs.
    """

    key: Key
    start: int
    top: int
    chosen: bytes
    ranks: bytes
    top_ids: bytes
    top_values: bytes
    count: int = 0
    states: bytes = b""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The scheduler did not accept this key; nothing else will come for it."""

    key: Key
    problem: Problem


FromScheduler = Tokens | PromptScores | Refused | Explained
