"""An engine that is recorded, with much going on; recordings made up frame by frame."""

import random
from itertools import count
from pathlib import Path

import msgspec
import pytest

from messages.admit import Admit
from messages.result import Attached
from messages.sampling import SamplingParams
from messages.text import Problem
from scheduler.args import SchedulerArgs
from scheduler.errors import ContractError, InvariantError
from scheduler.recorded import RecordedEngine
from scheduler.recorder import Recorder, start_recording
from scheduler.recording import MAGIC, Frame, Header, Reader, frame
from tests.support.null_answers import POISON_SEED_MARK
from tests.support.scheduler_bench import Bench, arguments, prompt_of
from transport.columns import pack_i32

SHUTDOWN = Problem(status=503, code="shutting_down", message="the server is shutting down")


class RecordedBench(Bench):
    """A bench whose engine is recorded into `path` (None: nowhere)."""

    def __init__(self, path: Path | None, tokens: bool, geometry: Attached | None = None, **changes: object) -> None:
        super().__init__(geometry, start=False, **changes)
        self.args = msgspec.structs.replace(self.args, record=str(path), record_tokens=tokens)
        self.recorder = start_recording(self.args) if path is not None else Recorder(None, self.args)
        sessions = count(1)
        self.engine = RecordedEngine(self.args, lambda: next(sessions), self.recorder)
        self.engine.open()
        self.flush()
        self.settle()


def frames_of(path: Path) -> list[Frame]:
    with Reader(path) as reader:
        return list(reader)


def churn(bench: RecordedBench, seed: int, rounds: int = 120) -> None:
    """Requests of every kind come and go, the worker restarts, plans fail, a tokenizer is lost; then all is closed."""
    chance = random.Random(seed)
    live: list[int] = []
    shared = prompt_of(24, seed)
    for _ in range(rounds):
        match chance.randrange(12):
            case 0 | 1 | 2 | 3:
                prompt = shared[: chance.randrange(25)] + prompt_of(chance.randrange(1, 16), chance.randrange(1000))
                live += bench.admit(
                    prompt,
                    chance.choice([1, 5, 12, None]),
                    n=chance.choice([1, 1, 3]),
                    end_ids=[chance.randrange(29)],
                    tokenizer=chance.choice(["tokenizer0", "tokenizer1"]),
                    priority=chance.randrange(-2, 3),
                    tenant=chance.choice(["", "alice", "bob", "carol"]),
                    cache_salt=chance.choice(["", "", "salt"]),
                    sampling=SamplingParams(logprobs=chance.randrange(-1, 3), repetition_penalty=chance.choice([1.0, 1.5])),
                )
            case 4 if live:
                bench.abort([live.pop(chance.randrange(len(live)))], finished=chance.random() < 0.5)
            case 5 if chance.random() < 0.1:
                bench.worker.restart()
            case 6 if chance.random() < 0.2:
                bench.engine.tokenizer_lost("tokenizer1")
            case 7 if chance.random() < 0.05:
                bench.engine.repair(InvariantError(["asked to"]))
                bench.flush()
            case 7 if chance.random() < 0.3:
                with pytest.raises(ContractError):
                    bench.engine.receive(broken_admit(), bench.now)
            case _:
                bench.step()
    bench.admit(prompt_of(5), 5, seeds=[POISON_SEED_MARK | 7])
    bench.settle()
    bench.admit(prompt_of(5), None)
    bench.step()
    bench.engine.close()
    bench.admit(prompt_of(5))
    bench.engine.fail_all(SHUTDOWN)
    bench.flush()
    bench.recorder.stop()


def broken_admit() -> Admit:
    """An Admit that the engine throws out."""
    return Admit(tokenizer="nobody", keys=[2**40], seeds=[1], prompt=pack_i32([1]), sampling=SamplingParams(), end_ids=[])


def written(path: Path, *contents: Frame, args: SchedulerArgs | None = None, tokens: bool = True) -> Path:
    encoder = msgspec.msgpack.Encoder()
    header = Header(args or arguments(), tokens, 0.0)
    path.write_bytes(MAGIC + b"".join(frame(content, encoder) for content in (header, *contents)))
    return path


def read_all(path: Path) -> tuple[int, int]:
    """Frames and unread bytes."""
    with Reader(path) as reader:
        return sum(1 for _ in reader), reader.unread
