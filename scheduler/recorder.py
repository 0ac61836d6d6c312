"""Makes a recording. Nothing that goes wrong with the file may disturb the scheduler: then the recording ends, and that is all."""

import hashlib
import logging
import time

import msgspec

from messages.admit import Admit, FromTokenizerProc
from messages.plan import StepPlan
from messages.result import FromWorker, Prepared, StepFailed, StepResult
from messages.text import Problem
from scheduler.args import SchedulerArgs
from scheduler.prints import Prints
from scheduler.reads import Reads
from scheduler.record_file import RecordFile
from scheduler.recording import (
    DIGEST_BYTES,
    MAGIC,
    REFUSED,
    Arrived,
    Closing,
    Computed,
    Drawn,
    Ended,
    FailedAll,
    Frame,
    Header,
    Lost,
    Opened,
    Planned,
    Received,
    Repaired,
    Turn,
    frame,
)
from transport.columns import I32
from transport.private_file import create_private

log = logging.getLogger(__name__)

BUFFER_BYTES = 1 << 16
FLUSH_SECONDS = 0.5


def start_recording(args: SchedulerArgs) -> "Recorder":
    """Into a new file, `args.record`, with the incarnation behind its name after a restart. Without a recording when it cannot be made."""
    path = str(args.record) if args.incarnation <= 1 else f"{args.record}.{args.incarnation}"
    try:
        file = RecordFile(create_private(path, buffering=0))
    except OSError as error:
        log.error("nothing is recorded: %s", error)
        return Recorder(None, args)
    return Recorder(file, args)


class Recorder:
    """One call for each call of the engine, in order; `ended` and `planned` for what came of it. `errors` counts failures (at most one).

    None for a `file` is a failure from the beginning. Given to the file every BUFFER_BYTES, FLUSH_SECONDS of `turn`, and at `stop`.
    `args.record_tokens` decides which kind of recording it is.
    """

    def __init__(self, file: RecordFile | None, args: SchedulerArgs) -> None:
        self.errors = int(file is None)
        self._file = file
        self._encoder = msgspec.msgpack.Encoder()
        self._prints = None if args.record_tokens else Prints()
        self._buffer = bytearray(MAGIC)
        self._flushed = 0.0
        self._reads = Reads()
        self._write(Header(args, args.record_tokens, time.time()))
        self._flush()

    def opened(self) -> None:
        self._write(Opened())

    def received(self, message: FromTokenizerProc | FromWorker, now: float) -> None:
        self._write(Received(now, message) if self._prints is None else _without_tokens(message, now, self._prints))

    def refused(self, key: int) -> None:
        """This key of the Admit received last is not live after all."""
        if self._prints is not None:
            self._prints.forget(key)
        self._write(Ended(key, REFUSED, 0, b""))

    def turn(self, now: float) -> None:
        self._write(Turn(now))
        if now - self._flushed >= FLUSH_SECONDS or len(self._buffer) >= BUFFER_BYTES:
            self._flushed = now
            self._flush()

    def drawn(self, session: int) -> None:
        self._write(Drawn(session))

    def planned(self, plan: StepPlan) -> None:
        prefill, decode, context = self._reads.of(plan)
        digest = digest_of(self._encoder.encode(plan)) if self._prints is None else b""
        self._write(Planned(plan.session, plan.step, prefill, decode, context, digest))

    def ended(self, key: int, reason: str, tokens: I32, prompt_len: int) -> None:
        """`tokens` of prompt and answer; fewer than the prompt has when they were lost."""
        output = tokens[prompt_len:].tobytes() if self._prints is None else self._prints.answer(key, tokens, prompt_len)
        self._write(Ended(key, reason, max(0, tokens.size - prompt_len), output))

    def lost(self, tokenizer: str, incarnation: int | None) -> None:
        self._write(Lost(tokenizer, incarnation))

    def closing(self) -> None:
        self._write(Closing())

    def repaired(self, problems: list[str]) -> None:
        self._write(Repaired(problems))

    def failed_all(self, problem: Problem) -> None:
        self._write(FailedAll(problem))

    def stop(self) -> None:
        """Write what is left; nothing is recorded afterwards."""
        self._flush()
        if self._file is not None:
            self._file.close()
            self._notice_failure()
            self._file = None

    def _write(self, content: Header | Frame) -> None:
        if self._file is not None:
            self._buffer += frame(content, self._encoder)

    def _flush(self) -> None:
        if self._file is not None and self._buffer:
            self._file.write(bytes(self._buffer))
            self._buffer.clear()
            self._notice_failure()

    def _notice_failure(self) -> None:
        if self._file is not None and self._file.failure is not None:
            self.errors += 1
            log.error("the recording ends here, serving goes on: %s", self._file.failure)
            self._file.abandon()
            self._file = None


def digest_of(plan: bytes) -> bytes:
    """Of an encoded StepPlan."""
    return hashlib.blake2b(plan, digest_size=DIGEST_BYTES).digest()


def _without_tokens(message: FromTokenizerProc | FromWorker, now: float, prints: Prints) -> Frame:
    match message:
        case StepResult():
            return Computed(now, message.session, message.step, len(message.status), message.seconds, message.queued)
        case Admit():
            return Arrived(
                now=now,
                tokenizer=message.tokenizer,
                keys=message.keys,
                prompt_len=len(message.prompt) // 4,
                units=prints.prompt(message),
                sampling=message.sampling,
                max_tokens=message.max_tokens,
                priority=message.priority,
                tenant=prints.label(message.tenant),
                cache_salt=prints.label(message.cache_salt),
            )
        case StepFailed():
            return Received(now, msgspec.structs.replace(message, message=""))
        case Prepared():
            return Received(now, msgspec.structs.replace(message, problem="not kept" if message.problem else ""))
        case _:
            return Received(now, message)
