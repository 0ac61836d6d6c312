"""Frames that are almost right: messages of every kind with arbitrary content, encoded and then damaged. All from a seed."""

import random
from typing import Any, get_args

import msgspec
from msgspec import inspect

from messages.admit import FromTokenizerProc
from messages.change import CancelCommand, DrainCommand, FinishCommand, ReloadCommand, RestartCommand, ResumeCommand
from messages.cluster import Command, Hung, StopCommand, ToSupervisor
from messages.peers import FromPeer
from messages.plan import Attach, Shutdown, ToWorker
from messages.request import FromFrontend
from messages.result import FromWorker
from messages.text import FromTokenizer
from messages.tokens import FromScheduler

NAMES = ("frontend0", "tokenizer0", "scheduler", "worker0", "supervisor", "nobody", "", "../x", "é\0")
NUMBERS = (0, 1, -1, 2, 7, 64, 255, 2**15, 2**31 - 1, 2**31, 2**53, 2**63 - 1, -(2**63))
INBOXES: dict[str, tuple[Any, ...]] = {
    "frontend0": (FromTokenizer, FromPeer),
    "tokenizer0": (FromFrontend, FromScheduler),
    "scheduler": (FromTokenizerProc, FromWorker),
    "worker0": (ToWorker,),
    "supervisor": (ToSupervisor,),
    "control": (Command,),
}
ORDERS = (Attach, Hung, Shutdown, StopCommand, DrainCommand, ResumeCommand, ReloadCommand, RestartCommand, CancelCommand, FinishCommand)
"""Obeyed when they are whole, whoever sends them: who gets into the run directory is trusted. They are not among the frames."""


def kinds(name: str) -> list[type[msgspec.Struct]]:
    """The Structs that the inbox called `name` takes."""
    found = [kind for union in INBOXES[name] for kind in get_args(union) or (union,)]
    return [kind for kind in found if kind not in ORDERS]


class Frames:
    """An endless source of damaged frames for one inbox."""

    def __init__(self, name: str, seed: int) -> None:
        self._random = random.Random(f"{name} {seed}")
        self._types = [inspect.type_info(kind) for kind in kinds(name)]
        self._last = b"\x80"

    def next(self) -> bytes:
        """Half of them are of the right types with senseless content, half have wrong bytes too."""
        value = self._value(self._random.choice(self._types))
        frame = msgspec.msgpack.encode(value)
        before, self._last = self._last, frame
        return frame if self._random.random() < 0.5 else self._damaged(frame, before)

    def _damaged(self, frame: bytes, other: bytes) -> bytes:
        pick, damaged = self._random, bytearray(frame)
        for _ in range(pick.randint(1, 4)):
            at = pick.randrange(len(damaged) + 1)
            way = pick.randrange(6)
            if way == 0 and damaged:
                damaged[at % len(damaged)] ^= 1 << pick.randrange(8)
            elif way == 1:
                damaged[at : at + pick.randint(1, 8)] = pick.randbytes(pick.randint(0, 8))
            elif way == 2:
                del damaged[at:]
            elif way == 3:
                damaged[at:at] = damaged[: pick.randint(0, 64)]
            elif way == 4:
                damaged[at:] = other[pick.randrange(len(other) + 1) :]
            else:
                damaged[at:at] = bytes([pick.choice((0x91, 0x81, 0xDD, 0xDF, 0xC6, 0xDB, 0xCF, 0xC1))]) * pick.choice((1, 5, 2000))
        return bytes(damaged)

    def _value(self, kind: inspect.Type, depth: int = 0) -> Any:
        pick = self._random
        if isinstance(kind, inspect.StructType):
            fields = {field.encode_name: self._value(field.type, depth + 1) for field in kind.fields if field.required or pick.random() < 0.5}
            return fields if kind.tag is None else {kind.tag_field: kind.tag, **fields}
        if isinstance(kind, inspect.UnionType):
            return self._value(pick.choice(kind.types), depth)
        if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.CollectionType):
            return [self._value(kind.item_type, depth + 1) for _ in range(pick.choice((0, 1, 1, 2, 3)) if depth < 5 else 0)]
        if isinstance(kind, inspect.DictType):
            return {str(self._value(kind.key_type, 9)): self._value(kind.value_type, depth + 1) for _ in range(pick.choice((0, 1, 2)))}
        return self._scalar(kind)

    def _scalar(self, kind: inspect.Type) -> Any:
        pick = self._random
        if isinstance(kind, inspect.IntType):
            low, high = kind.ge if kind.ge is not None else -(2**63), kind.le if kind.le is not None else 2**63 - 1
            return pick.choice([number for number in NUMBERS if low <= number <= high] or [low])
        if isinstance(kind, inspect.FloatType):
            return pick.choice((0.0, 1.0, -1.0, 1e308, float("inf"), float("nan"), 5e-324))
        if isinstance(kind, inspect.BoolType):
            return pick.random() < 0.5
        if isinstance(kind, inspect.StrType):
            return pick.choice(NAMES)
        if isinstance(kind, inspect.BytesType):
            return pick.randbytes(pick.choice((0, 1, 4, 8, 8, 16, 64)))
        if isinstance(kind, inspect.LiteralType):
            return pick.choice(kind.values)
        if isinstance(kind, inspect.RawType | inspect.AnyType):
            return pick.choice((None, "A", 1, [1], {"a": 1}))
        return None
