"""Into a worker from the scheduler: what to compute in one step. Only changes travel; the worker keeps all per-slot state.

A worker applies the parts of a plan in this order: release, admit (with bias, match), append, copies, prefill and decode (one batch), scores, sample.
"""

import msgspec

from messages.constraint import Program


class Attach(msgspec.Struct, frozen=True, tag="attach"):
    """Forget every slot; from now on only plans of `session` count. Answered with `messages.result.Attached`."""

    session: int


class Admissions(msgspec.Struct, frozen=True, kw_only=True):
    """New rows, one value per row: slot i32, prompt_len i32, seed i64, logprobs i32 (see SamplingParams), the rest f32 but top_k i32.

    `prompt_len` tells prompt tokens from generated ones for the penalties; after a preemption or a worker restart a row is admitted again
    and its generated tokens are prefilled behind the prompt, so the penalties and the position-keyed randomness continue exactly.
    `seen_slot`/`seen_count`/`seen_tokens` (i32; tokens concatenated) name tokens a row already holds through cached blocks; only rows with
    penalties need them, and rows with words (see Biases) or a grammar (see Matches) when some of them were generated.
    """

    slot: bytes
    prompt_len: bytes
    seed: bytes
    temperature: bytes
    top_p: bytes
    top_k: bytes
    min_p: bytes
    presence_penalty: bytes
    frequency_penalty: bytes
    repetition_penalty: bytes
    logprobs: bytes
    seen_slot: bytes = b""
    seen_count: bytes = b""
    seen_tokens: bytes = b""


class Biases(msgspec.Struct, frozen=True, kw_only=True):
    """Changes to the logits of some of the rows admitted in this plan, before penalties. Per row: `slot` i32, `closed` u8, `count` i32.

    `token` i32, `value` f32 and `since` i32 are concatenated, `count` each, no token twice: `value` is added to the logit of `token`; minus
    infinity, and any value while the row has fewer than `since` tokens (prompt included), mean that it is not chosen. In a closed row only tokens
    named here are.

    Words: the last token of a word is not chosen when the row's generated tokens end with the others. `word_slot` and `word_count` (2 or more)
    i32, `word_tokens` i32 concatenated.
    """

    slot: bytes
    closed: bytes
    count: bytes
    token: bytes
    value: bytes
    since: bytes
    word_slot: bytes = b""
    word_count: bytes = b""
    word_tokens: bytes = b""


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Compile `program`, the grammar that rows admitted later are to follow, under this number. Answered with `messages.result.Prepared`.

    `forget`: grammars that no row has and that none will be given.
    """

    session: int
    grammar: int
    program: Program
    forget: list[int] = []


class Matches(msgspec.Struct, frozen=True, kw_only=True):
    """Rows admitted in this plan whose generated tokens follow a grammar: `slot` and `grammar` (a number of Prepare) i32, one value per row.

    The token of every step is one that the grammar allows after those before. End tokens are allowed where it may end.
    """

    slot: bytes
    grammar: bytes


POOLED = -1
"""In the `top` column of Scores."""


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """Positions inside this plan's prompt chunks whose logprobs or hidden states are wanted, answered with `messages.result.ScoreColumns`.

    Per row i32: `slot`, `start` (the first such position), `count` >= 1, `top` (number of alternatives). `tokens` i32, concatenated: the token
    that follows each of them in the prompt, whose logprob it is. A row whose `top` is POOLED has no tokens here: it wants the sum of the model's
    last hidden states at its positions.
    """

    slot: bytes
    start: bytes
    count: bytes
    top: bytes
    tokens: bytes


class Appends(msgspec.Struct, frozen=True, kw_only=True):
    """Block table writes, i32 each: table[slot, index] = block."""

    slot: bytes
    index: bytes
    block: bytes


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """Copy-on-write, i32 each: block `source` to block `target`, before anything is computed."""

    source: bytes
    target: bytes


class Prefills(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt chunks, one per row: `slot`, `start` (position of its first token), `count` >= 1 (i32), `sample` (u8: 1 on the last chunk).

    `tokens` (i32) is concatenated over rows, `count` each.
    """

    slot: bytes
    start: bytes
    count: bytes
    sample: bytes
    tokens: bytes


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="step"):
    """One step. A decode row feeds the slot's last sampled token at the slot's current length and samples the next.

    `decode`: a bitmap of slots (slot i is bit i % 8, from the lowest, of byte i // 8), or None for 'the same rows as the step before'. Rows of
    one slot in consecutive plans may be sent before the first result is back: the sampled id is fed forward inside the worker. `step` rises by
    one from 1 within a session.
    """

    session: int
    step: int
    release: bytes = b""
    admit: Admissions | None = None
    bias: Biases | None = None
    match: Matches | None = None
    append: Appends | None = None
    copies: Copies | None = None
    prefill: Prefills | None = None
    decode: bytes | None = b""
    scores: Scores | None = None


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Finish the step in hand and exit."""


ToWorker = Attach | Prepare | StepPlan | Shutdown
