"""The responses that one frontend keeps: those that run in the background, and the last ones that have ended, in bounded memory."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from frontend.errors import ApiError
from frontend.responses.body import ResponseBody
from frontend.responses.events import EventLog
from frontend.responses.items import Item, memory
from frontend.responses.recorder import Recorder, replay
from frontend.responses.status import UNFINISHED
from messages.text import Problem

MAX_ENDED = 4096
MAX_ENDED_BYTES = 256 << 20
MAX_RUNNING = 1024
MAX_RUNNING_BYTES = 256 << 20
FULL_RETRY_SECONDS = 2.0


class Stop(Protocol):
    """See `frontend.responses.background`."""

    async def __call__(self, forget: bool) -> None: ...
    async def halt(self) -> None: ...
    def fail(self, problem: Problem) -> None: ...


@dataclass(eq=False)
class Kept:
    """A response. `key`: the name of the API key that it belongs to. `items`: its whole input, earlier turns included, without instructions.

    `log` is there in background mode, `recorder` and `stop`, which ends it, while it runs. `durable`: it is in the journal; `written`: whether its
    end is there too.
    `size`: bytes of memory, about, but for what it `held` besides while it runs.
    """

    body: ResponseBody
    key: str
    items: list[Item]
    durable: bool = False
    log: EventLog | None = None
    recorder: Recorder | None = None
    stop: Stop | None = None
    written: "asyncio.Future[bool] | None" = None
    held: int = 0
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.measure()

    @property
    def id(self) -> str:
        return self.body.id

    @property
    def unfinished(self) -> bool:
        return self.body.status in UNFINISHED

    def current(self) -> ResponseBody:
        """With its output so far."""
        return self.body if self.recorder is None else self.recorder.current()

    def events(self) -> EventLog:
        """Those of its making; for one that has come from the journal, some that say the same."""
        if self.log is not None:
            return self.log
        log = EventLog()
        replay(self.body, log.add)
        log.end()
        return log

    def measure(self) -> None:
        self.size = self.body.memory() + memory(self.body.output) + memory(self.items) + (0 if self.log is None else self.log.memory())


class Store:
    """When the ended ones become too many, the key that takes most memory loses the one it has not asked for longest; `lost` is told which."""

    def __init__(self, lost: Callable[[Kept], None] = lambda _: None, max_ended: int = MAX_ENDED, max_bytes: int = MAX_ENDED_BYTES) -> None:
        self.running: dict[str, Kept] = {}
        self.running_bytes = 0
        self.held_bytes = 0
        self.ended_bytes = 0
        self._lost = lost
        self._max_ended = max_ended
        self._max_bytes = max_bytes
        self._ended: dict[str, OrderedDict[str, Kept]] = {}
        self._bytes: dict[str, int] = {}
        self._owners: dict[str, str] = {}

    @property
    def ended(self) -> int:
        """How many ended ones are kept."""
        return len(self._owners)

    def check_room(self, size: int) -> None:
        """Raises ApiError 429 when so many bytes more cannot run in the background."""
        if len(self.running) >= MAX_RUNNING or self.running_bytes + size > MAX_RUNNING_BYTES:
            message = "Too many responses wait or run in the background; try again when some have ended."
            raise ApiError(429, "queue_full", message, retry_after=FULL_RETRY_SECONDS)

    def begin(self, kept: Kept) -> None:
        """It runs in the background."""
        self.running[kept.id] = kept
        self.running_bytes += kept.size

    def hold(self, kept: Kept, held: int) -> None:
        """One holds so many bytes now, if it runs."""
        if kept.id in self.running:
            self.held_bytes += held - kept.held
            kept.held = held

    def heaviest(self) -> Kept:
        """Of those that run: of the key whose hold most, the one that holds most."""
        of_keys: dict[str, int] = {}
        for kept in self.running.values():
            of_keys[kept.key] = of_keys.get(kept.key, 0) + kept.held
        key = max(of_keys, key=lambda name: of_keys[name])
        return max((kept for kept in self.running.values() if kept.key == key), key=lambda kept: kept.held)

    def _leave(self, kept: Kept) -> bool:
        """It does not run any more. False when it did not before."""
        if kept.id not in self.running:
            return False
        self.hold(kept, 0)
        del self.running[kept.id]
        self.running_bytes -= kept.size
        return True

    def end(self, kept: Kept) -> None:
        """It has ended, whether it ran in the background or not."""
        self._leave(kept)
        kept.recorder = kept.stop = None
        kept.measure()
        self._ended.setdefault(kept.key, OrderedDict())[kept.id] = kept
        self._bytes[kept.key] = self._bytes.get(kept.key, 0) + kept.size
        self._owners[kept.id] = kept.key
        self.ended_bytes += kept.size
        while len(self._owners) > 1 and (len(self._owners) > self._max_ended or self.ended_bytes > self._max_bytes):
            self._lose_one()

    def _lose_one(self) -> None:
        heaviest = max(self._bytes, key=lambda key: self._bytes[key])
        oldest = next(iter(self._ended[heaviest].values()))
        self._drop(oldest)
        self._lost(oldest)

    def find(self, name: str, owner: str | None) -> Kept | None:
        """By id. `owner`: only those of the key of this name; None: anybody's."""
        kept = self.running.get(name)
        if kept is None and (key := self._owners.get(name)) is not None:
            kept = self._ended[key][name]
            if owner is None or owner == key:
                self._ended[key].move_to_end(name)
        return kept if kept is not None and owner in (None, kept.key) else None

    def remove(self, kept: Kept) -> None:
        """Nothing of it is known any more."""
        if not self._leave(kept) and kept.id in self._owners:
            self._drop(kept)

    def _drop(self, kept: Kept) -> None:
        del self._owners[kept.id]
        mine = self._ended[kept.key]
        del mine[kept.id]
        self._bytes[kept.key] -= kept.size
        self.ended_bytes -= kept.size
        if not mine:
            del self._ended[kept.key], self._bytes[kept.key]
