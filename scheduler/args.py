"""Arguments of the scheduler process."""

from transport.lifetime import ProcessArgs


class SchedulerArgs(ProcessArgs, frozen=True, kw_only=True):
    """What the supervisor tells the scheduler.

    `tokenizers`: names of the tokenizer processes; `worker`: name of the worker. `max_context` lowers the context limit (tokens).
    `chunk_tokens`: prompt tokens computed per step at most. `max_queue` (sequences) and `max_queue_tokens` (prompt tokens) bound the waiting
    line. `run_ahead`: plans sent beyond the one whose result is awaited. `step_deadline`: seconds without a result before the scheduler
    reports itself stalled. `drain_seconds`: how long running sequences may go on after SIGTERM.
    """

    tokenizers: list[str]
    worker: str = "worker0"
    max_context: int | None = None
    chunk_tokens: int = 256
    max_queue: int = 1024
    max_queue_tokens: int = 4_000_000
    run_ahead: int = 1
    step_deadline: float = 60.0
    drain_seconds: float = 3.0
