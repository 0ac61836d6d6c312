"""A recording: what the scheduler received, when, and what it planned. The file's format and its reader; `scheduler.recorder` writes it.

A file is MAGIC, then frames: length (u32), CRC-32 of the payload (u32), payload, which is one MessagePack-encoded Struct of this module. The first
frame is the Header. Everything else stands in the order in which it happened; times are the `now` given to the engine.

Two kinds. With tokens, `scheduler.replay` can run it again and must come to the same plans. Without, no token id is in the file: instead of
prompts and answers it has a chain of keyed hashes, one for each whole unit of UNIT tokens, so that what began alike still does; the key is not kept.
"""

import errno
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from messages.admit import FromTokenizerProc
from messages.key import Key
from messages.request import Label
from messages.result import FromWorker
from messages.sampling import SamplingParams
from messages.text import Problem
from scheduler.args import SchedulerArgs

MAGIC = b"pagewire recording 1\n"
FRAME = struct.Struct("<II")
MAX_FRAME_BYTES = 1 << 28
UNIT = 16
"""Tokens of one hashed unit."""
UNIT_BYTES = 8
DIGEST_BYTES = 8

# Why a sequence ended: an end token; its limit; the tokenizer found a stop string; the client or the tokenizer went away; a problem; never accepted.
STOP, LENGTH, STOP_STRING, CANCELLED, ERROR, REFUSED = "stop", "length", "stop_string", "cancelled", "error", "refused"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class RecordingError(ValueError):
    """A file is no recording, or is damaged. `offset` is the byte at which the frame begins that cannot be used."""

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(f"{problem} (at byte {offset})")
        self.offset = offset


class Header(msgspec.Struct, frozen=True, array_like=True, tag="header"):
    """`tokens`: whether token ids are kept. `started`: seconds since 1970."""

    args: SchedulerArgs
    tokens: bool
    started: float


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="open"):
    """`Engine.open()`."""


class Received(msgspec.Struct, frozen=True, array_like=True, tag="in"):
    """`Engine.receive(message, now)`. Without tokens never an Admit or a StepResult, and the text of a StepFailed is empty."""

    now: float
    message: FromTokenizerProc | FromWorker


class Arrived(msgspec.Struct, frozen=True, array_like=True, tag="admit"):
    """An Admit without tokens. `units`: UNIT_BYTES for each whole unit of the prompt, each a hash of all tokens so far, salt and tenant.

    `tenant` and `cache_salt` are hashed too (empty stays empty).
    """

    now: float
    tokenizer: str
    keys: list[Key]
    prompt_len: Count
    units: bytes
    sampling: SamplingParams
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None
    priority: int
    tenant: Label
    cache_salt: Label

    def __post_init__(self) -> None:
        if len(self.units) != self.prompt_len // UNIT * UNIT_BYTES:
            raise ValueError(f"a prompt of {self.prompt_len} tokens with {len(self.units)} bytes of units")


class Computed(msgspec.Struct, frozen=True, array_like=True, tag="result"):
    """A StepResult without tokens: `rows` of them were sampled; the times as in StepResult."""

    now: float
    session: int
    step: int
    rows: Count
    seconds: float
    queued: float


class Turn(msgspec.Struct, frozen=True, array_like=True, tag="turn"):
    """`Engine.advance(now)`."""

    now: float


class Drawn(msgspec.Struct, frozen=True, array_like=True, tag="session"):
    """The engine asked for a session number and got this one, in the course of the call recorded before."""

    session: Count


class Planned(msgspec.Struct, frozen=True, array_like=True, tag="plan"):
    """A plan was sent, at the time of the last Turn. `context`: KV positions read; each row of the step reads its whole length once.

    `digest`: BLAKE2b of the plan as sent (DIGEST_BYTES); empty without tokens, for whoever guesses a prompt could check the guess.
    """

    session: Count
    step: Count
    prefill: Count
    decode: Count
    context: Count
    digest: bytes


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """A sequence is over: after `generated` tokens, for `reason` (see above).

    `output`: its generated tokens (i32), or without tokens the units (see Arrived) that end behind the prompt.
    """

    key: Key
    reason: str
    generated: Count
    output: bytes

    def __post_init__(self) -> None:
        units = len(self.output) // UNIT_BYTES
        hashed = len(self.output) % UNIT_BYTES == 0 and units - 1 <= self.generated // UNIT <= units
        if len(self.output) != 4 * self.generated and not hashed:
            raise ValueError(f"an answer of {self.generated} tokens with {len(self.output)} bytes")


class Lost(msgspec.Struct, frozen=True, array_like=True, tag="lost"):
    """`Engine.tokenizer_lost(tokenizer, incarnation)`."""

    tokenizer: str
    incarnation: int | None = None


class Closing(msgspec.Struct, frozen=True, array_like=True, tag="close"):
    """`Engine.close()`."""


class FailedAll(msgspec.Struct, frozen=True, array_like=True, tag="fail_all"):
    """`Engine.fail_all(problem)`."""

    problem: Problem


class Repaired(msgspec.Struct, frozen=True, array_like=True, tag="repair"):
    """`Engine.repair(InvariantError(problems))`."""

    problems: list[str]


Frame = Opened | Received | Arrived | Computed | Turn | Drawn | Planned | Ended | Lost | Closing | FailedAll | Repaired


class Reader:
    """The frames of a recording, one after the other. Use it in a `with`; raises RecordingError, and OSError when the file cannot be read.

    `unread` is the number of bytes after the last whole frame, known at the end: a process that was killed leaves half a frame, which is no error.
    """

    def __init__(self, path: str | Path) -> None:
        if not Path(path).is_file():
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        self._file: BinaryIO = open(path, "rb")  # noqa: SIM115
        self._size = os.fstat(self._file.fileno()).st_size
        self._offset = 0
        self._decode = msgspec.msgpack.Decoder(Frame).decode
        self.unread = 0
        try:
            self.header = self._header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Frame]:
        while (found := self._payload()) is not None:
            offset, payload = found
            try:
                content = self._decode(payload)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise RecordingError(f"the recording is damaged: {error}", offset) from error
            yield content

    def _header(self) -> Header:
        if self._file.read(len(MAGIC)) != MAGIC:
            raise RecordingError("this is no recording, or one of another version of Pagewire", 0)
        self._offset = len(MAGIC)
        found = self._payload()
        if found is None:
            raise RecordingError("the recording ends before its header", self._offset)
        try:
            return msgspec.msgpack.decode(found[1], type=Header)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise RecordingError(f"the recording has a damaged header: {error}", found[0]) from error

    def _payload(self) -> tuple[int, bytes] | None:
        """(offset of the frame, payload), or None at the end."""
        offset, left = self._offset, self._size - self._offset
        self.unread = left
        if left < FRAME.size:
            return None
        length, checksum = FRAME.unpack(self._file.read(FRAME.size))
        if not 0 < length <= MAX_FRAME_BYTES:
            raise RecordingError(f"the recording is damaged: a frame of {length} bytes", offset)
        if left < FRAME.size + length:
            return None
        payload = self._file.read(length)
        if zlib.crc32(payload) != checksum:
            raise RecordingError("the recording is damaged: a frame does not have its checksum", offset)
        self._offset = offset + FRAME.size + length
        return offset, payload


def frame(content: Header | Frame, encoder: msgspec.msgpack.Encoder) -> bytes:
    """The bytes of one frame."""
    payload = encoder.encode(content)
    return FRAME.pack(len(payload), zlib.crc32(payload)) + payload
