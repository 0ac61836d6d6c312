"""One scheduler's loop in bytes, as its sockets would bring and take them: what it costs, without sockets and without a model."""

import time
from collections import deque
from itertools import count

import msgspec
import numpy as np

from messages.admit import Admit, FromTokenizerProc
from messages.plan import Attach, StepPlan
from messages.result import FromWorker
from messages.sampling import SamplingParams
from messages.tokens import RUNNING, Tokens
from scheduler.engine import Engine
from simulator.clients import TOKENIZER
from simulator.simulation import Machine
from simulator.worker import NullWorker, Script, end_token
from transport.columns import I32, view_u8

VOCAB = 32_000
STEP_SECONDS = 0.005


class Loop:
    """The scheduler with a worker that answers at once. `turn()` is one turn of the scheduler process."""

    def __init__(self, machine: Machine) -> None:
        sessions = count(1)
        self.engine = Engine(machine.scheduler_args(), lambda: next(sessions))
        self.finished = 0
        self.plans: list[StepPlan] = []
        self._keys = count(1)
        self._now = 0.0
        self._decoder = msgspec.msgpack.Decoder(FromTokenizerProc | FromWorker)
        self._encode = msgspec.msgpack.Encoder().encode
        self._inbox: deque[bytes] = deque()
        self._requests: list[bytes] = []
        self.engine.open()
        for _, message in self.engine.take():
            if isinstance(message, Attach):
                attached = machine.attached(message.session, VOCAB)
                self._worker = NullWorker(attached, lambda seed: Script())
                self.engine.receive(attached, self._now)
        self.engine.advance(self._now)

    @property
    def waits(self) -> bool:
        """Whether a request waits to be taken in by the next turn."""
        return bool(self._requests)

    def send(self, prompt: I32, max_tokens: int) -> None:
        """A request that comes in with the next turn."""
        key = next(self._keys)
        admit = Admit(
            tokenizer=TOKENIZER,
            keys=[key],
            seeds=[key],
            prompt=prompt.tobytes(),
            sampling=SamplingParams(),
            end_ids=[end_token(VOCAB)],
            max_tokens=max_tokens,
        )
        self._requests.append(self._encode(admit))

    def turn(self) -> float:
        """New requests and the oldest result in, plans and tokens out, all decoded and encoded. Returns its CPU time in microseconds."""
        frames = self._requests
        if self._inbox:
            frames.append(self._inbox.popleft())
        self._now += STEP_SECONDS
        start = time.process_time_ns()
        for frame in frames:
            self.engine.receive(self._decoder.decode(frame), self._now)
        self.engine.advance(self._now)
        sent = [(message, self._encode(message)) for _, message in self.engine.take()]
        spent = (time.process_time_ns() - start) / 1000
        self._requests = []
        for message, _ in sent:
            self._answer(message)
        return spent

    def plan_bytes(self) -> tuple[list[int], list[int]]:
        """Sizes of the plans since the last call, whole and without their new blocks."""
        plans, self.plans = self.plans, []
        bare = [msgspec.structs.replace(plan, append=None) for plan in plans]
        return [len(self._encode(plan)) for plan in plans], [len(self._encode(plan)) for plan in bare]

    def _answer(self, message: msgspec.Struct) -> None:
        if isinstance(message, StepPlan):
            self.plans.append(message)
            result, _ = self._worker.run(message)
            self._inbox.append(self._encode(msgspec.structs.replace(result, seconds=STEP_SECONDS)))
        elif isinstance(message, Tokens):
            self.finished += int(np.count_nonzero(view_u8(message.finish) != RUNNING))
