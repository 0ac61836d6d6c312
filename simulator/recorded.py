"""A recording as a workload: the same requests at the same times, with the lengths their answers had; and its step times."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from messages.admit import Admit
from messages.result import Attached, StepResult
from scheduler.recording import LENGTH, REFUSED, STOP, STOP_STRING, UNIT, Arrived, Computed, Ended, Header, Planned, Reader, Received, RecordingError
from scheduler.replay import ReplayError, ReplayReport, replay
from simulator.cost import CostModel
from simulator.errors import SimulatorError
from simulator.fit import fit_cost_model
from simulator.simulation import Machine
from simulator.work import Work
from simulator.workload import Choice, FixedWorkload, Job
from transport.columns import I32, ColumnError, view_i32

DEFAULT_VOCAB = 1 << 17


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """The requests of a recording, and the worker and settings it was made with."""

    workload: FixedWorkload
    machine: Machine


@dataclass(slots=True, eq=False)
class _Sent:
    """One Admit while the file is read, sent `at` (the recording's own seconds); `ends` has how each key ended, and when."""

    admit: Admit | Arrived
    at: float
    ends: dict[int, tuple[Ended, float]] = field(default_factory=dict)


def read_recording(path: Path, speed: float = 1.0) -> Recorded:
    """The whole recording; its requests arrive `speed` times as fast. Raises SimulatorError."""
    sent: list[_Sent] = []
    live: dict[int, _Sent] = {}
    attached: Attached | None = None
    now = 0.0
    with _opened(path) as reader:
        for frame in reader:
            now = getattr(frame, "now", now)
            message = frame.message if isinstance(frame, Received) else frame
            if isinstance(message, Admit | Arrived):
                sent.append(_Sent(message, now))
                live |= {key: sent[-1] for key in message.keys if key not in live}
            elif isinstance(message, Ended) and message.key in live:
                live.pop(message.key).ends[message.key] = (message, now)
            elif isinstance(message, Attached):
                attached = message
        header = reader.header
    if not sent:
        raise SimulatorError(f"{path} has no requests: record while some are sent")
    vocab = DEFAULT_VOCAB if attached is None else attached.vocab
    usual = _usual_length(sent)
    try:
        jobs = [_job(one, number, (one.at - sent[0].at) / speed, vocab, usual) for number, one in enumerate(sent)]
    except ColumnError as error:
        raise SimulatorError(f"{path} has a prompt that is no column of token ids: {error}") from error
    return Recorded(FixedWorkload(name=path.name, fixed=jobs, vocab=vocab), _machine(header, attached))


def fit_recording(path: Path) -> CostModel:
    """A cost model fitted to the recorded step times. Raises SimulatorError."""
    planned: dict[tuple[int, int], Work] = {}
    works, seconds = [], []
    with _opened(path) as reader:
        for frame in reader:
            result = frame.message if isinstance(frame, Received) else frame
            if isinstance(result, Planned):
                planned[result.session, result.step] = Work(result.prefill, result.decode, result.context)
            elif isinstance(result, Computed | StepResult) and (result.session, result.step) in planned:
                works.append(planned.pop((result.session, result.step)))
                seconds.append(result.seconds)
    return fit_cost_model(path.stem, works, seconds, f"fitted to {path.name}")


def replay_recording(path: Path) -> ReplayReport:
    """Whether the scheduler comes to the recorded plans again. Raises SimulatorError."""
    with _understood(path):
        return replay(path)


@contextmanager
def _opened(path: Path) -> Iterator[Reader]:
    with _understood(path), Reader(path) as reader:
        yield reader


@contextmanager
def _understood(path: Path) -> Iterator[None]:
    """What can be wrong with the file becomes a SimulatorError."""
    try:
        yield
    except OSError as error:
        raise SimulatorError(f"cannot read {path}: {error.strerror}; recordings are made with `cluster start --record FILE`") from error
    except (RecordingError, ReplayError) as error:
        raise SimulatorError(f"{path}: {error}") from error


def _machine(header: Header, attached: Attached | None) -> Machine:
    args = header.args
    machine = Machine(
        chunk_tokens=args.chunk_tokens,
        run_ahead=args.run_ahead,
        prefix_cache=args.prefix_cache,
        target_itl=args.target_itl,
        max_queue=args.max_queue,
        max_queue_tokens=args.max_queue_tokens,
        max_live_tokens=args.max_live_tokens,
        max_queue_seconds=args.max_queue_seconds,
    )
    if attached is None:
        return machine
    return replace(
        machine,
        slots=attached.max_slots,
        blocks=attached.blocks,
        block_size=attached.block_size,
        max_step_tokens=attached.max_step_tokens,
        context=min(attached.context, attached.max_blocks_per_slot * attached.block_size, args.max_context or attached.context),
    )


def _usual_length(sent: list[_Sent]) -> int:
    """The mean length of answers that ended of themselves: for those whose end is not recorded."""
    known = [end.generated for one in sent for end, _ in one.ends.values() if end.reason in (STOP, LENGTH, STOP_STRING)]
    return max(1, round(sum(known) / len(known))) if known else 128


def _job(one: _Sent, number: int, at: float, vocab: int, usual: int) -> Job:
    admit = one.admit
    ends = [one.ends.get(key) for key in admit.keys]
    if isinstance(admit, Admit):
        prompt = view_i32(admit.prompt)
        answers = [None if end is None else view_i32(end[0].output) for end in ends]
    else:
        prompt, answers = _unhashed(admit, [None if end is None else end[0] for end in ends], number, vocab)
    choices = [_choice(end, one.at, usual, answer) for end, answer in zip(ends, answers, strict=True)]
    return Job(
        at=at,
        prompt=prompt,
        max_tokens=admit.max_tokens,
        choices=choices,
        sampling=admit.sampling,
        priority=admit.priority,
        tenant=admit.tenant,
        cache_salt=admit.cache_salt,
    )


def _choice(end: tuple[Ended, float] | None, sent: float, usual: int, answer: I32 | None) -> Choice:
    if end is None or end[0].reason == REFUSED:
        return Choice(stops_after=usual)
    ended, now = end
    if ended.reason == LENGTH:
        return Choice(answer=answer)
    if ended.reason == STOP:
        return Choice(stops_after=ended.generated, answer=answer)
    return Choice(leaves_after=ended.generated, patience=now - sent, stop_string=ended.reason == STOP_STRING, answer=answer)


def _unhashed(arrived: Arrived, ends: list[Ended | None], number: int, vocab: int) -> tuple[I32, list[I32 | None]]:
    """A prompt and answers made up so that what began alike does so again: the tokens of a unit come from its hash, the rest from `number`.

    The unit in which the prompt ends and the answer begins is that of the first choice.
    """
    whole = _tokens_of(arrived.units, vocab)
    texts = [None if end is None else np.concatenate([whole, _tokens_of(end.output, vocab), _filler(number, vocab)]) for end in ends]
    lead = next((text for text in texts if text is not None), None)
    prompt = np.resize(_filler(number, vocab), arrived.prompt_len)
    known = whole if lead is None else lead[: arrived.prompt_len]
    prompt[: known.size] = known
    answers = [
        None if text is None or end is None else text[arrived.prompt_len : arrived.prompt_len + end.generated]
        for text, end in zip(texts, ends, strict=True)
    ]
    return prompt, answers


def _tokens_of(units: bytes, vocab: int) -> I32:
    """UNIT tokens for each unit, from its hash."""
    words = np.frombuffer(units, dtype="<u4").astype(np.int64).reshape(-1, 2)
    return ((words[:, :1] + np.arange(UNIT) * (words[:, 1:] | 1)) % vocab).astype(np.int32).reshape(-1)


def _filler(number: int, vocab: int) -> I32:
    """Tokens less than a unit long that no other request has."""
    return np.random.default_rng(number).integers(0, vocab, UNIT - 1, dtype=np.int32)
