"""A tokenizer process started alone; the test is its supervisor, its frontends and its scheduler, over the real sockets."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import zmq

from messages.admit import Abort, Admit, FromTokenizerProc
from messages.cluster import ClusterState, ProcessReport, ProcessState
from messages.request import Cancel, ChatPrompt, Generate, TextPrompt, Tokenize, TokenPrompt
from messages.sampling import SamplingParams, StopRules
from messages.text import Ended, FromTokenizer, Problem, Started, TextDelta, Texts, Tokenized
from messages.tokens import Tokens
from tokenizer_proc.admission import FIT
from tokenizer_proc.args import TokenizerArgs
from transport.columns import pack_i32, pack_i64, pack_u8, view_i32
from transport.sockets import Feed, Inbox, Outbox

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 30.0
NAME = "tokenizer0"
PROBE = 1 << 40
"""A key of our own."""
T = TypeVar("T")


def chat(*messages: dict[str, Any]) -> ChatPrompt:
    return ChatPrompt([{name: msgspec.Raw(msgspec.msgpack.encode(value)) for name, value in message.items()} for message in messages])


def generate(key: int, prompt: Any = None, keys: list[int] | None = None, frontend: str = "frontend0", **options: Any) -> Generate:
    stop = StopRules(**{name: options.pop(name) for name in ("strings", "token_ids", "include_stop_string", "ignore_eos") if name in options})
    keys = keys or [key]
    options = {"incarnation": 1} | options
    seeds = [key + 1000 for key in keys]
    return Generate(frontend=frontend, keys=keys, seeds=seeds, prompt=prompt or TextPrompt("A"), sampling=SamplingParams(), stop=stop, **options)


def tokens(*rows: tuple[int, int, int, int], **more: Any) -> Tokens:
    """Rows of (key, token, finish, index)."""
    key, token, finish, index = zip(*rows, strict=True)
    return Tokens(key=pack_i64(key), token=pack_i32(token), finish=pack_u8(finish), index=pack_i32(index), **more)


class Neighbours:
    """Use as a context manager: starts the process and waits until it is ready with `context` known to it. `package`: what it runs."""

    def __init__(
        self, run_dir: Path, model: Path, context: int | None = 2048, chat_template: str | None = None, package: str = "tokenizer_proc"
    ) -> None:
        self.run_dir = run_dir
        self._package = package
        self._zmq: zmq.Context[Any] = zmq.Context()
        self._reports: Inbox[ProcessReport] = Inbox(self._zmq, run_dir, "supervisor", ProcessReport)
        self._feed = Feed(self._zmq, run_dir, "cluster")
        self._frontends: dict[str, Inbox[FromTokenizer]] = {
            name: Inbox(self._zmq, run_dir, name, FromTokenizer) for name in ("frontend0", "frontend1")
        }
        self._scheduler: Inbox[FromTokenizerProc] = Inbox(self._zmq, run_dir, "scheduler", FromTokenizerProc)
        self._out = Outbox(self._zmq, run_dir, NAME)
        self._context = context
        self._state: ClusterState | None = None
        self.incarnations = {"scheduler": 1, "frontend0": 1, "frontend1": 1}
        self._args = TokenizerArgs(
            name=NAME, incarnation=1, run_dir=str(run_dir), model=str(model), frontends=["frontend0", "frontend1"], chat_template=chat_template
        )
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        environment = os.environ | {"PAGEWIRE_PROCESS": msgspec.json.encode(self._args).decode(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-P", "-m", self._package]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def restart(self) -> None:
        """SIGKILL, and another incarnation; wait for it with `start`, and send then: before, it may not know the cluster's state."""
        self.process.kill()
        self.process.communicate(timeout=PATIENCE)
        self._out.close()  # its connection may not know yet that nobody is there, and would take what is sent next with it
        self._out = Outbox(self._zmq, self.run_dir, NAME)
        self._args = msgspec.structs.replace(self._args, incarnation=self._args.incarnation + 1)
        self.process = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=PATIENCE)
        for inbox in self._frontends.values():
            inbox.close()
        self._reports.close()
        self._scheduler.close()
        self._out.close()
        self._feed.close()
        self._zmq.term()

    def start(self) -> Self:
        """Make the cluster's state known, and wait for READY, which comes after it."""
        if self._state is None:  # one that is started again hears it at once, and may not be seen to wait for it
            self.report(lambda report: report.phase == "loading" and "cluster" in report.detail)
        self._state = self._cluster_state(self._context)
        self.report(lambda report: report.incarnation == self._args.incarnation and report.phase == "ready")
        return self

    def publish(self, context: int | None, phase: str = "ready") -> None:
        """The scheduler is in this phase and has this context from now on; the process hears it when it next looks."""
        self._state = self._cluster_state(context, phase)
        self._feed.publish(self._state)

    def know(self, context: int) -> None:
        """The context is this from now on; comes back when the process goes by it. Nobody may be sent anything meanwhile."""
        self.publish(context)
        end = time.monotonic() + PATIENCE
        while not self._goes_by(context):
            assert time.monotonic() < end, "the context is not known"

    def settle(self, keys: Sequence[int]) -> None:
        """Nothing is left of these, in the process or on its way."""
        self.send(Cancel(list(keys)))
        self.send(generate(PROBE))
        while not (isinstance(sent := self.scheduled(), Admit) and sent.keys == [PROBE]):
            pass
        while not (isinstance(heard := self.hear(), Started) and heard.key == PROBE):
            pass
        self.send(Cancel([PROBE]))
        assert self.scheduled() == Abort([PROBE])

    def _goes_by(self, context: int) -> bool:
        """Whether two of three tokens fit beside an answer of all the context but two."""
        request = generate(PROBE, TokenPrompt([0] * 3), truncate=FIT)
        self.send(msgspec.structs.replace(request, stop=StopRules(max_tokens=context - 2)))
        answer = self.hear()
        if isinstance(answer, Ended):
            return False
        admit = self.scheduled()
        assert isinstance(admit, Admit)
        self.send(Cancel([PROBE]))
        assert self.scheduled() == Abort([PROBE])
        return len(admit.prompt) == 4 * 2

    def _cluster_state(self, context: int | None, phase: str = "ready") -> ClusterState:
        facts: dict[str, int | float | str] = {} if context is None else {"context": context}
        said = {"scheduler": (phase, facts)}
        processes = [
            ProcessState(name=name, incarnation=number, pid=1, phase=said.get(name, ("ready", {}))[0], facts=said.get(name, ("ready", {}))[1])
            for name, number in self.incarnations.items()
        ]
        return ClusterState(ready=True, phase="ready", reason="", model="m", started=0.0, processes=processes)

    def send(self, message: msgspec.Struct) -> None:
        self._out.send(message)

    def send_frame(self, frame: bytes) -> None:
        self._out.send_frame(frame)

    def report(self, wanted: Callable[[ProcessReport], bool]) -> ProcessReport:
        """The next report that is `wanted`. The cluster's state is published again and again meanwhile."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if self._state is not None:
                self._feed.publish(self._state)
            self._reports.wait(0.05)
            for report in self._reports.drain():
                if wanted(report):
                    return report
            assert self.process.poll() is None or not self._reports.wait(0.2), self.errors()
        raise AssertionError("no such report")

    def hear(self, name: str = "frontend0") -> FromTokenizer:
        """The next message to a frontend. Texts of a single sequence read as its TextDelta."""
        message = self._next(self._frontends[name])
        if isinstance(message, Texts) and len(message.keys) == 1:
            key = message.keys[0]
            return TextDelta(key, message.texts[0], view_i32(message.ids, message.tokens[0]).tolist(), cached=message.cached.get(key, 0))
        return message

    def silent(self, name: str = "frontend0", seconds: float = 0.3) -> bool:
        return not self._frontends[name].wait(seconds)

    def scheduled(self) -> FromTokenizerProc:
        """The next message to the scheduler."""
        return self._next(self._scheduler)

    def nothing_scheduled(self, seconds: float = 0.3) -> bool:
        return not self._scheduler.wait(seconds)

    def _next(self, inbox: Inbox[T]) -> T:
        assert inbox.wait(PATIENCE), f"nothing came; the process has ended with {self.process.poll()}"
        return inbox.drain(1)[0]

    def terminate(self) -> int:
        """SIGTERM; gives the exit status."""
        self.process.terminate()
        return self.process.wait(timeout=PATIENCE)

    def errors(self) -> str:
        """What an ended process wrote to standard error."""
        return self.process.communicate(timeout=PATIENCE)[1]


def admitted(neighbours: Neighbours, request: Generate) -> Admit:
    """Send a request; the prompt must reach the scheduler and the frontend must hear so."""
    neighbours.send(request)
    admit = neighbours.scheduled()
    assert isinstance(admit, Admit), admit
    assert neighbours.hear(request.frontend) == Started(request.keys[0], len(admit.prompt) // 4)
    return admit


def problem_of(neighbours: Neighbours, request: Any) -> Problem:
    neighbours.send(request)
    ended = neighbours.hear()
    assert isinstance(ended, Ended), ended
    assert ended.problem is not None
    return ended.problem


def ids_of(neighbours: Neighbours, text: str) -> list[int]:
    neighbours.send(Tokenize(frontend="frontend0", key=2, prompt=TextPrompt(text, add_special_tokens=False)))
    answer = neighbours.hear()
    assert isinstance(answer, Tokenized)
    return answer.ids
