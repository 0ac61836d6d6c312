"""Arguments of the scheduler process."""

from typing import Annotated

import msgspec

from transport.lifetime import ProcessArgs


class SchedulerArgs(ProcessArgs, frozen=True, kw_only=True):
    """What the supervisor tells the scheduler.

    `tokenizers`: names of the tokenizer processes; `worker`: name of the worker. `max_context` lowers the context limit (tokens).
    `chunk_tokens`: prompt tokens computed per step at most. `max_queue` (sequences) and `max_queue_tokens` (prompt tokens) bound the waiting
    line, `max_live_tokens` (0: nothing does) the tokens of prompts and answers that all live sequences may come to, and `max_queue_seconds` (0:
    nothing does) how long a new one is let wait, as far as that can be predicted. `run_ahead`: plans in flight at once; 1 waits for every result
    before the next plan. `prefix_cache` false shares KV blocks only between the choices of one request. `target_itl` (seconds): prompt chunks are
    cut so that a step takes about so long while rows decode. `step_deadline`: seconds that the first step of its kind may take before the worker
    is taken to hang (see `scheduler.deadlines`); 0: for ever. `drain_seconds`: how long running sequences may go on after SIGTERM. `self_check`:
    check every invariant when idle. `record`: a file for every message received, without token ids unless `record_tokens`.
    """

    tokenizers: list[str]
    worker: str = "worker0"
    max_context: int | None = None
    chunk_tokens: int = 128
    max_queue: int = 1024
    max_queue_tokens: int = 4_000_000
    max_live_tokens: int = 0
    max_queue_seconds: float = 0.0
    run_ahead: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    prefix_cache: bool = True
    target_itl: float | None = None
    step_deadline: float = 60.0
    drain_seconds: float = 3.0
    self_check: bool = False
    record: str | None = None
    record_tokens: bool = False
