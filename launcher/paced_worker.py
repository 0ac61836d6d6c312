"""`python -m launcher.paced_worker`: a worker without a model for `bench serve --paced`. Its steps take a given time and its tokens are made up.

So the whole path from the scheduler to the client can be measured on a machine without a GPU, at the pace of one with it.
"""

import sys
import time
from collections import deque
from typing import Any

import numpy as np
import zmq

from messages.cluster import READY, STOPPING
from messages.plan import Attach, Prepare, Shutdown, StepPlan, ToWorker
from messages.result import OK, Attached, Prepared, StepResult, WorkerReady
from transport.columns import I32, pack_i32, view_i32, view_slots, view_u8
from transport.lifetime import Lifetime, ProcessArgs, read_arguments, set_up_logging
from transport.reports import Reporter
from transport.sockets import Inbox, Outbox

BLOCKS, BLOCK_SIZE, CONTEXT = 65_536, 16, 4096
WAIT_SECONDS = 0.1


class PacedArgs(ProcessArgs, frozen=True, kw_only=True):
    """`step_seconds`: how long a step takes, whatever it holds."""

    vocab: int
    step_seconds: float
    max_slots: int
    max_step_tokens: int
    scheduler: str = "scheduler"


class PacedWorker:
    """Plans wait in their order; a result is sent `step_seconds` after the one before, or after its plan came if that was later."""

    def __init__(self, args: PacedArgs) -> None:
        self._args = args
        self._context: zmq.Context[Any] = zmq.Context()
        self._inbox: Inbox[ToWorker] = Inbox(self._context, args.run_dir, args.name, ToWorker)
        self._outbox = Outbox(self._context, args.run_dir, args.scheduler, linger_ms=200)
        self._results: deque[tuple[float, StepResult]] = deque()
        self._decode: I32 = np.zeros(0, np.int32)
        self._free = 0.0
        self._random = np.random.default_rng(0)
        self._outbox.send(WorkerReady(worker=args.name, incarnation=args.incarnation))

    def turn(self) -> None:
        """Take in plans, and give the result that is due."""
        wait = self._results[0][0] - time.monotonic() if self._results else WAIT_SECONDS
        if wait > 0:
            self._inbox.wait(wait)
        for message in self._inbox.drain():
            if isinstance(message, Attach):
                self._attach(message.session)
            elif isinstance(message, StepPlan):
                self._step(message)
            elif isinstance(message, Prepare):
                self._outbox.send(Prepared(session=message.session, grammar=message.grammar, problem="this worker has no model"))
            elif isinstance(message, Shutdown):
                self._results.clear()
        while self._results and self._results[0][0] <= time.monotonic():
            self._outbox.send(self._results.popleft()[1])

    def _attach(self, session: int) -> None:
        self._results.clear()
        args = self._args
        self._outbox.send(
            Attached(
                session=session, worker=args.name, blocks=BLOCKS, block_size=BLOCK_SIZE, max_slots=args.max_slots,
                max_blocks_per_slot=CONTEXT // BLOCK_SIZE, max_step_tokens=args.max_step_tokens, context=CONTEXT, vocab=args.vocab,
            )
        )  # fmt: skip

    def _step(self, plan: StepPlan) -> None:
        if plan.decode is not None:
            self._decode = view_slots(plan.decode)
        slots = self._decode
        if plan.prefill is not None:
            slots = np.concatenate([view_i32(plan.prefill.slot)[view_u8(plan.prefill.sample) == 1], slots])
        tokens = self._random.integers(0, self._args.vocab, slots.size, dtype=np.int32)
        self._free = max(self._free, time.monotonic()) + self._args.step_seconds
        columns = pack_i32(slots), pack_i32(tokens), bytes([OK]) * slots.size
        seconds = self._args.step_seconds
        result = StepResult(session=plan.session, step=plan.step, slot=columns[0], token=columns[1], status=columns[2], seconds=seconds)
        self._results.append((self._free, result))

    def close(self) -> None:
        self._inbox.close()
        self._outbox.close()
        self._context.term()


def main() -> int:
    args = read_arguments(PacedArgs)
    set_up_logging(args)
    lifetime, reporter, worker = Lifetime(args), Reporter(args), PacedWorker(args)
    reporter.numbers({"warming": 0.0}, {})
    reporter.phase(READY)
    while not lifetime.stopping.is_set():
        worker.turn()
    reporter.phase(STOPPING)
    worker.close()
    reporter.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
