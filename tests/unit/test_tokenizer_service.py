"""The service without sockets: what happens while a prompt is still being encoded, and when a queue is full."""

import asyncio
import threading
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from blockbuster import blockbuster_ctx

from messages.admit import Abort, Admit
from messages.cluster import ClusterState, ProcessState
from messages.request import Cancel, Generate, Prompt, TextPrompt
from messages.sampling import SamplingParams
from messages.text import Ended, Started, Texts
from messages.tokens import FINISH_LENGTH, RUNNING
from tests.support.tokenizer_neighbours import generate, tokens
from tests.support.tokenizers import folder_vocabulary
from tokenizer_proc.admission import Sender
from tokenizer_proc.grammar_checks import GrammarChecks
from tokenizer_proc.prompts import PromptEncoder
from tokenizer_proc.service import Service
from tokenizer_proc.text_pool import TextPool
from transport.columns import pack_i32


@dataclass(frozen=True)
class GatedEncoder(PromptEncoder):
    """Encodes when the gate is opened; a prompt `panic` breaks as a fault of our own would."""

    gate: threading.Event = field(default_factory=threading.Event)

    def encode(self, prompt: Prompt, context: int | None = None, keep: int | None = None) -> list[int]:
        assert self.gate.wait(60)
        if prompt == TextPrompt("panic"):
            raise BaseException("a panic")
        return super().encode(prompt, context, keep)


@dataclass
class Neighbours:
    """Collects what the service sends."""

    to_frontend: list[msgspec.Struct] = field(default_factory=list)
    to_scheduler: list[msgspec.Struct] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    full: bool = False

    def frontend(self, message: msgspec.Struct) -> bool:
        self.to_frontend.append(message)
        return True

    def scheduler(self, message: msgspec.Struct) -> bool:
        if not self.full:
            self.to_scheduler.append(message)
        return not self.full

    def reject(self, why: str) -> None:
        self.rejected.append(why)


def state(frontend: int = 1, scheduler: int = 1) -> ClusterState:
    processes = [
        ProcessState(name="frontend0", incarnation=frontend, pid=1, phase="ready"),
        ProcessState(name="scheduler", incarnation=scheduler, pid=2, phase="ready", facts={"context": 100}),
    ]
    return ClusterState(ready=True, phase="ready", reason="", model="m", started=0.0, processes=processes)


@dataclass
class Stage:
    """A service, its neighbours and the gate of its encoder."""

    service: Service
    others: Neighbours
    gate: threading.Event

    def ask(self, request: Generate) -> None:
        self.service.handle(request)

    async def open(self) -> None:
        """Let everything waiting be encoded, and wait for it."""
        self.gate.set()
        async with asyncio.timeout(60):
            while self.service.pool.waiting:
                await asyncio.sleep(0.005)

    def problems(self) -> list[str]:
        return [message.problem.code for message in self.others.to_frontend if isinstance(message, Ended) and message.problem]


@pytest.fixture
async def stage(models: Path) -> Stage:
    vocabulary = folder_vocabulary(models / "chain-byte")
    encoder, others = GatedEncoder(vocabulary, None), Neighbours()
    pool = TextPool(asyncio.get_running_loop())
    grammars = GrammarChecks(asyncio.get_running_loop(), models)
    service = Service(Sender("tokenizer0", 1), encoder, pool, {"frontend0": others.frontend}, others.scheduler, others, grammars)
    service.on_cluster(state())
    return Stage(service, others, encoder.gate)


async def test_cancelled_while_encoding_is_never_admitted(stage: Stage) -> None:
    stage.ask(generate(1))
    stage.ask(generate(2, keys=[2, 3]))
    stage.service.handle(Cancel([1, 3]))
    await stage.open()
    assert [message.keys for message in stage.others.to_scheduler if isinstance(message, Admit)] == [[2]]
    assert stage.others.to_frontend == [Started(2, 2)]
    assert stage.service.preparing == 0
    stage.ask(generate(1))
    await stage.open()
    assert len(stage.others.to_scheduler) == 2


async def test_frontend_restart_while_encoding(stage: Stage) -> None:
    stage.ask(generate(1))
    stage.service.on_cluster(state(frontend=2))
    await stage.open()
    assert stage.others.to_scheduler == []


async def test_a_scheduler_restart_changes_nothing_here(stage: Stage) -> None:
    stage.ask(generate(1))
    stage.service.on_cluster(state(scheduler=2))
    await stage.open()
    stage.service.on_cluster(state(scheduler=3))
    assert len(stage.others.to_scheduler) == 1
    assert stage.problems() == []


async def test_encoding_takes_of_the_time_that_a_request_has(stage: Stage) -> None:
    now = [100.0]
    stage.service.clock = lambda: now[0]
    for key, timeout in ((1, 5.0), (2, 1.0), (3, None)):
        stage.ask(generate(key, timeout=timeout))
    now[0] += 2.0
    await stage.open()
    admitted = {message.keys[0]: message.timeout for message in stage.others.to_scheduler if isinstance(message, Admit)}
    assert admitted == {1: 3.0, 2: 0.0, 3: None}


async def test_full_scheduler_queue(stage: Stage) -> None:
    stage.others.full = True
    stage.ask(generate(1, keys=[1, 2]))
    await stage.open()
    assert stage.problems() == ["overloaded", "overloaded"]
    assert len(stage.service.sequences) == 0


@pytest.mark.parametrize("score_first", [False, True])
@pytest.mark.parametrize("gone", [0, 1, 2])
async def test_a_prompt_is_scored_for_the_first_choice_alone(stage: Stage, score_first: bool, gone: int) -> None:
    """Of choices 1 to 3, `gone` (0: none) is cancelled meanwhile."""
    request = msgspec.structs.replace(generate(1, keys=[1, 2, 3]), sampling=SamplingParams(prompt_logprobs=2, top_k=5), score_first=score_first)
    stage.ask(request)
    stage.service.handle(Cancel([gone]))
    await stage.open()
    found = [(admit.keys, admit.seeds, admit.sampling) for admit in stage.others.to_scheduler if isinstance(admit, Admit)]
    keys = [key for key in (1, 2, 3) if key != gone]
    scored = keys if not score_first else [key for key in keys if key == 1]
    rest = [key for key in keys if key not in scored]
    parts = [(scored, request.sampling), (rest, SamplingParams(prompt_logprobs=-1, top_k=5))]
    assert found == [(part, [key + 1000 for key in part], sampling) for part, sampling in parts if part]
    for key in keys:
        sequence = stage.service.sequences.get(key)
        assert sequence is not None
        assert (sequence.extras is not None) == (key in scored)


async def test_what_the_scheduler_has_of_a_refused_request_is_aborted(stage: Stage) -> None:
    """Its queue is full behind the first of two parts."""
    taken = iter([True, False, True])
    stage.service.scheduler = lambda message: next(taken) and stage.others.scheduler(message)
    stage.ask(msgspec.structs.replace(generate(1, keys=[1, 2]), sampling=SamplingParams(prompt_logprobs=0), score_first=True))
    await stage.open()
    assert stage.problems() == ["overloaded", "overloaded"]
    assert stage.others.to_scheduler[1:] == [Abort([1, 2])]
    assert len(stage.service.sequences) == 0


@pytest.mark.parametrize(
    ("echo", "sampling", "param"),
    [
        (True, SamplingParams(logprobs=9, prompt_logprobs=9), "logprobs"),
        (True, SamplingParams(logprobs=1, prompt_logprobs=9), "prompt_logprobs"),
        (False, SamplingParams(logprobs=9, prompt_logprobs=9), "prompt_logprobs"),
    ],
)
async def test_too_many_logprobs_name_the_field_that_asked(
    stage: Stage, echo: bool, sampling: SamplingParams, param: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenizer_proc.admission.MAX_PROMPT_LOGPROBS", 10)
    stage.ask(msgspec.structs.replace(generate(1, echo=echo), sampling=sampling))
    await stage.open()
    (ended,) = stage.others.to_frontend
    assert isinstance(ended, Ended)
    assert ended.problem is not None
    assert (ended.problem.code, ended.problem.param) == ("too_many_logprobs", param)


async def test_a_fault_of_ours_fails_that_request_alone(stage: Stage) -> None:
    stage.ask(generate(1, TextPrompt("panic")))
    stage.ask(generate(2))
    await stage.open()
    assert stage.problems() == ["internal_error"]
    assert len(stage.others.to_scheduler) == 1


async def test_shutting_down_tells_everyone(stage: Stage) -> None:
    stage.ask(generate(1))
    await stage.open()
    stage.gate.clear()
    stage.ask(generate(2))
    stage.service.shut_down()
    assert stage.problems() == ["shutting_down", "shutting_down"]
    await stage.open()
    assert len(stage.others.to_scheduler) == 2
    assert stage.others.to_scheduler[1] == Abort([1])


async def test_the_event_loop_never_blocks(stage: Stage) -> None:
    stage.gate.set()
    with blockbuster_ctx():
        stage.ask(generate(1, strings=["zzz"]))
        await stage.open()
        stage.service.handle(tokens((1, 64, RUNNING, 0)))
        stage.service.handle(tokens((1, 65, FINISH_LENGTH, 1)))
    assert stage.others.to_frontend[1] == Texts([1], ["a"], [1], pack_i32([64]))
    assert isinstance(stage.others.to_frontend[2], Ended)
    assert len(stage.service.sequences) == 0


async def test_a_step_is_one_message_and_endings_come_after_it(stage: Stage) -> None:
    stage.ask(generate(1, keys=[1, 2, 3]))
    await stage.open()
    stage.service.handle(tokens((1, 64, RUNNING, 0), (2, 65, FINISH_LENGTH, 0), (3, 66, RUNNING, 0)))
    stage.service.handle(tokens((3, 64, RUNNING, 1), (1, 65, RUNNING, 5)))
    _, texts, ended, third, lost = stage.others.to_frontend
    assert texts == Texts([1, 3], ["a", "c"], [1, 1], pack_i32([64, 66]))
    assert isinstance(ended, Ended)
    assert (ended.key, ended.text, ended.tokens) == (2, "b", 1)
    assert third == Texts([3], ["a"], [1], pack_i32([64]))
    assert isinstance(lost, Ended)
    assert lost.problem is not None
    assert (lost.key, lost.completion_tokens) == (1, 1)
