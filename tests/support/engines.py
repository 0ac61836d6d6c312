"""Worker engines on small checkpoints, in this process, and logits from them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from messages.result import StepResult
from tests.support.plans import Chunk, Planner, Row
from transport.columns import view_f32, view_i32
from transport.reports import Reporter
from worker.args import WorkerArgs
from worker.load import load_model, waiting_engine
from worker.step import Engine


class SilentReporter(Reporter):
    """Keeps the phases it is told instead of sending them."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def phase(self, phase: str, detail: str = "", progress: float | None = None) -> None:
        self.said.append(detail)


def worker_args(model: Path, run_dir: Path | str = "/nowhere", **changes: Any) -> WorkerArgs:
    """Arguments for a small pool."""
    values: dict[str, Any] = {"kv_tokens": 4096, "max_slots": 8, "max_step_tokens": 512, "threads": 1, **changes}
    return WorkerArgs(name="worker0", incarnation=1, run_dir=str(run_dir), model=str(model), **values)


def make_engine(model: Path, threads: int = 1, **changes: Any) -> Engine:
    """An engine in this process, attached to session 1 so to say. One thread: these models are too small for more."""
    torch.set_num_threads(threads)
    args = worker_args(model, **changes)
    engine = waiting_engine(args, load_model(args, SilentReporter()))
    engine.reset()
    return engine


def poison(engine: Engine) -> None:
    """NaN in the whole pool, as if other rows had left it there."""
    engine.cache.k.fill_(float("nan"))
    engine.cache.v.fill_(float("nan"))


def tokens_of(result: StepResult) -> list[int]:
    tokens: list[int] = view_i32(result.token).tolist()
    return tokens


def full_logprobs(result: StepResult, vocab: int) -> NDArray[np.float32]:
    """[rows, vocab] for rows that asked for all of them (logprobs = vocab)."""
    assert result.logprobs is not None
    ids, values = view_i32(result.logprobs.top_ids).reshape(-1, vocab), view_f32(result.logprobs.top).reshape(-1, vocab)
    out = np.full(ids.shape, np.nan, np.float32)
    np.put_along_axis(out, ids.astype(np.int64), values, 1)
    return out


def last_logprobs(engine: Engine, ids: Sequence[int], cuts: Sequence[int], slot: int = 0, blocks: Sequence[int] | None = None) -> NDArray[np.float32]:
    """Log-softmax after every cut: the prompt `ids` is prefilled in chunks that end at `cuts`, and sampled at the last one only."""
    planner = Planner()
    engine.reset()
    needed = -(-len(ids) // engine.cache.block_size)
    row = Row(slot=slot, prompt=ids, blocks=blocks or range(needed), logprobs=engine.slots.vocab)
    start, result = 0, None
    for number, cut in enumerate(cuts):
        chunk = Chunk(slot, start, ids[start:cut], cut == len(ids))
        result = engine.run(planner.plan(admit=[row] if number == 0 else [], chunks=[chunk]))
        start = cut
    assert result is not None
    last: NDArray[np.float32] = full_logprobs(result, engine.slots.vocab)[0]
    return last


def every_logprobs(engine: Engine, ids: Sequence[int], split: int) -> NDArray[np.float32]:
    """Log-softmax at positions split-1.. by prefilling `split` tokens and then feeding the rest through decode rows."""
    planner = Planner()
    engine.reset()
    needed = -(-len(ids) // engine.cache.block_size)
    row = Row(slot=0, prompt=ids[:split], blocks=range(needed), logprobs=engine.slots.vocab)
    rows = [full_logprobs(engine.run(planner.start(row)), engine.slots.vocab)]
    for token in ids[split:]:
        engine.slots.last[0] = token
        rows.append(full_logprobs(engine.run(planner.plan(decode=[0])), engine.slots.vocab))
    return np.concatenate(rows)
