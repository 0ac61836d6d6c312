"""`replay`: run again, on a worker of its own, the steps of a request that was found to end the worker."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from launcher.errors import LauncherError
from launcher.options import device, number, whole
from launcher.specs import WORKER_NAME, WORKERS, ProcessSpec
from launcher.stand import WAIT_SECONDS, Stand
from messages.cluster import SCHEDULER_NAME
from messages.plan import Attach, StepPlan
from messages.poison import MOST_POISON_BYTES, POISON_MAGIC, Poison
from messages.result import Attached, FromWorker, StepFailed, StepResult, WorkerReady
from transport.columns import view_i32, view_slots
from transport.marked_file import MarkedFileError, read_marked
from transport.sockets import Inbox, Outbox
from worker.args import WorkerArgs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `replay`."""
    parser.add_argument("file", metavar="FILE", help="a poison-N.plan of a run directory")
    parser.add_argument("--model", metavar="M", help="the model's folder or file, when it is not where it was")
    parser.add_argument("--device", type=device, metavar="D", help="cpu, cuda or cuda:N (the same as before)")
    parser.add_argument("--threads", type=whole(0, 4096), default=0, help="CPU threads; 0: all cores")
    parser.add_argument("--timeout", type=number(0.1, 86400), default=60.0, metavar="S", help="seconds after which a step is taken to hang (60)")


def run(args: argparse.Namespace) -> int:
    """0 when all steps could be run, 1 when one of them ended the worker, failed or hung. Raises LauncherError."""
    poison = read_poison(Path(args.file))
    print(f"found {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(poison.time))}: {poison.why}")
    print(f"{len(poison.plans)} steps, {poison.answered} of them gave a result", flush=True)
    if any(plan.match is not None for plan in poison.plans):
        print("the answer was to have a certain form, which is not kept: its tokens are drawn without", flush=True)
    with Replay(poison, worker_arguments(args, poison.attached)) as replay:
        for place, plan in enumerate(poison.plans, 1):
            outcome = replay.step(plan, args.timeout)
            print(f"step {place} of {len(poison.plans)} ({_work(plan)}): {outcome.text}", flush=True)
            if not outcome.good:
                return 1
    print("all steps could be run")
    return 0


def read_poison(path: Path) -> Poison:
    """What the file holds. Raises LauncherError."""
    try:
        return read_marked(path, POISON_MAGIC, MOST_POISON_BYTES, Poison, "the steps of a request that ended the worker")
    except MarkedFileError as error:
        raise LauncherError(str(error)) from error


def worker_arguments(args: argparse.Namespace, attached: Attached) -> dict[str, Any]:
    """Those of a worker like the one that ended. Raises LauncherError when its model is not known or not there."""
    origin = attached.origin
    same: dict[str, Any] = {} if origin is None else msgspec.structs.asdict(origin)
    shape = "" if args.model else same.get("model_shape", "")
    model = args.model or same.get("model", "")
    if not shape and (not model or not Path(model).exists()):
        raise LauncherError(f"there is no model {model}; name its folder or .gguf file with --model")
    return {
        **same,
        "model": "" if shape else str(Path(model).absolute()),
        "model_shape": shape,
        "device": args.device or same.get("device", "cpu"),
        "threads": args.threads,
        "kv_tokens": attached.blocks * attached.block_size,
        "block_size": attached.block_size,
        "max_slots": attached.max_slots,
        "max_step_tokens": attached.max_step_tokens,
    }


def mismatch(before: Attached, now: Attached) -> str | None:
    """Why plans for the worker `before`, which name its slots, blocks and tokens, cannot be run by the one there is `now`; None when they can."""
    for name in ("block_size", "vocab", "blocks", "max_slots", "max_step_tokens"):
        old, new = getattr(before, name), getattr(now, name)
        if new < old or (new != old and name in ("block_size", "vocab")):
            return f"its {name} is {old}, and {new} here"
    return None


class Outcome(msgspec.Struct, frozen=True):
    """What became of a step, in words."""

    good: bool
    text: str


class Replay(Stand):
    """A worker process, attached. `step` by `step` the plans of `poison` are run on it."""

    def __init__(self, poison: Poison, worker: dict[str, Any]) -> None:
        super().__init__()
        self._attached = poison.attached
        self._worker = worker

    def specs(self) -> Sequence[ProcessSpec]:
        return [ProcessSpec(package="worker", args=WorkerArgs(**self.common(WORKER_NAME), **self._worker), stage=WORKERS)]

    def open(self) -> None:
        self._inbox: Inbox[FromWorker] = Inbox(self.context, self.folder, SCHEDULER_NAME, FromWorker)
        self._outbox = Outbox(self.context, self.folder, WORKER_NAME)

    def close(self) -> None:
        self._inbox.close()
        self._outbox.close()

    def __enter__(self) -> "Replay":
        super().__enter__()
        try:
            self._outbox.send(Attach(self._attached.session))
            answer = self._answer(self._startup_timeout)
            if not isinstance(answer, Attached):
                raise LauncherError("the worker could not be attached")
            if (other := mismatch(self._attached, answer)) is not None:
                raise LauncherError(f"the plans are of another worker: {other}")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def step(self, plan: StepPlan, seconds: float) -> Outcome:
        """Run one plan, and wait `seconds` at most."""
        began = time.perf_counter()
        self._outbox.send(msgspec.structs.replace(plan, match=None))
        try:
            answer = self._answer(seconds)
        except LauncherError as error:
            return Outcome(False, str(error).splitlines()[0])
        if isinstance(answer, StepResult):
            return Outcome(True, f"{view_i32(answer.token).size} tokens in {time.perf_counter() - began:.3f} s")
        if isinstance(answer, StepFailed):
            return Outcome(False, f"the worker could not run it: {answer.message}")
        return Outcome(False, f"no result for {seconds:g} s")

    def _answer(self, seconds: float) -> FromWorker | None:
        """The next thing the worker says; None when it says nothing. Raises LauncherError when it ends."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self._inbox.wait(WAIT_SECONDS)
            for message in self._inbox.drain():
                if not isinstance(message, WorkerReady):
                    return message
            self.watch(0)
        return None


def _work(plan: StepPlan) -> str:
    prefill = 0 if plan.prefill is None else len(plan.prefill.tokens) // 4
    if plan.decode is None:
        return f"{prefill} prompt tokens, the decode rows of the step before"
    return f"{prefill} prompt tokens, {view_slots(plan.decode).size} decode rows"
