"""Into the scheduler from the workers: what a step gave."""

import msgspec

from messages.tokens import LogprobColumns

# Values of the `status` column.
OK, NON_FINITE, UNMATCHED = 0, 1, 2


class WorkerReady(msgspec.Struct, frozen=True, kw_only=True, tag="worker_ready"):
    """A worker process has loaded and waits to be attached. Sent at its start, then every second until it is attached.

    `incarnation` counts the starts of this worker. A session belongs to one of them: what else a worker says carries the session.
    """

    worker: str
    incarnation: int = 0


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker was started with, as far as its results depend on it."""

    model: str
    device: str
    dtype: str
    kv_dtype: str
    weights: str
    dummy_weights: bool
    max_context: int | None
    model_shape: str = ""
    deterministic: bool = False


class Attached(msgspec.Struct, frozen=True, kw_only=True, tag="attached"):
    """The geometry a session runs with. `blocks` counts usable blocks with ids 0..blocks-1 (the dummy block is the worker's own).

    `max_slots` rows at most; `max_blocks_per_slot` columns in the block table; `max_step_tokens` bounds prefill + decode rows of one plan.
    `context` is the model's own limit in tokens, `vocab` the number of logits. `incarnation` as in WorkerReady.
    """

    session: int
    worker: str
    blocks: int
    block_size: int
    max_slots: int
    max_blocks_per_slot: int
    max_step_tokens: int
    context: int
    vocab: int
    incarnation: int = 0
    origin: Origin | None = None


class Prepared(msgspec.Struct, frozen=True, kw_only=True, tag="prepared"):
    """The grammar of a `messages.plan.Prepare` can be used; or why not, a sentence."""

    session: int
    grammar: int
    problem: str = ""


class ScoreColumns(msgspec.Struct, frozen=True, kw_only=True):
    """What the plan's Scores asked for; `slot`, `start`, `count` and `top` are as there.

    Logprobs: for each position one value of `chosen` (f32) and of `ranks` (i32: how many tokens are at least as likely, itself counted), and `top`
    values of `top_ids` (i32) and `top_values` (f32), best first. `states` f32: one vector, as long as the model's hidden size, for each POOLED row.
    """

    slot: bytes
    start: bytes
    count: bytes
    top: bytes
    chosen: bytes
    ranks: bytes
    top_ids: bytes
    top_values: bytes
    states: bytes = b""


class StepResult(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    """Sampled rows of one step: first the prefills with sample=1 in plan order, then the decode rows by slot.

    `slot` i32, `token` i32 (-1 when status is not OK), `status` u8: NON_FINITE when the row's logits are not numbers, UNMATCHED when its grammar is
    too complex at this place. `seconds` is the step's compute time, `queued` how long the plan
    waited in the worker. `logprobs.row` indexes these columns.
    """

    session: int
    step: int
    slot: bytes
    token: bytes
    status: bytes
    logprobs: LogprobColumns | None = None
    scores: ScoreColumns | None = None
    seconds: float = 0.0
    queued: float = 0.0


class StepFailed(msgspec.Struct, frozen=True, kw_only=True, tag="step_failed"):
    """The worker could not run this plan (a plan that breaks the contract). It dropped the session and waits to be attached again."""

    session: int
    step: int
    message: str


FromWorker = WorkerReady | Attached | Prepared | StepResult | StepFailed
