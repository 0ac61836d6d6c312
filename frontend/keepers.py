"""Which of the frontends on one port counts for an API key with limits, and the way to it: so a key has its limits once, whatever the kernel does
with its connections.

A key's keeper follows from its name and from who is ready. When it dies, the next one counts what runs from then on; when it does not answer, the
frontend that has the request counts it by itself. Nothing that is lost on the way counts for ever, or never: once a second, and at once when a
frontend has gone or come, each tells the keepers of what it runs, and takes to them what they do not know; what nobody tells of any more is over.
"""

import asyncio
import contextlib
import itertools
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web

from frontend.accounts import Accounts, Used
from frontend.errors import ApiError
from frontend.streams import Sender
from messages.peers import EnteredKey, EnterKey, OfKeys, Stay, UsedKey
from messages.text import Problem
from transport.key_file import KeyLimits

PATIENCE_SECONDS = 0.5
TELL_SECONDS = 1.0
SILENT_SECONDS = 30.0
"""A request of another frontend is over when nothing was told of it for so long. Time in which this process did not run does not count."""
Headers = Callable[[], Mapping[str, str]]
STAY: web.RequestKey[Stay] = web.RequestKey("stay", Stay)
"""How the request counts, for what is to be counted in its place."""


class Elsewhere:
    """A request that another frontend has, with the tokens that it has used."""

    def __init__(self, began: float, tokens: int) -> None:
        self.began = began
        self.prompt_tokens = tokens
        self.completion_tokens = 0


def nothing() -> Mapping[str, str]:
    """The headers of a key without limits."""
    return {}


@dataclass(eq=False)
class Place:
    """A request of this frontend. `keeper` counts it, whose incarnation is `at` (None: this process); `known`: it has said so.

    `passed_on`: another frontend is about to run it.
    """

    name: str
    limits: KeyLimits
    used: Used
    stay: Stay
    headers: Headers = nothing
    keeper: str = ""
    at: int | None = None
    known: bool = False
    passed_on: bool = False

    @property
    def tokens(self) -> int:
        return self.used.prompt_tokens + self.used.completion_tokens


@dataclass(eq=False)
class Counted:
    """A request of a key that is kept here, whoever has it. `heard`: when it was last told of."""

    name: str
    used: Used
    heard: float


class Keepers:
    """`outboxes`: one for each other frontend. `ready` gives the incarnation of one that answers, None of one that does not."""

    def __init__(
        self, name: str = "", incarnation: int = 0, outboxes: Mapping[str, Sender] | None = None,
        ready: Callable[[str], int | None] = lambda _: None, accounts: Accounts | None = None,
    ) -> None:  # fmt: skip
        self._name = name
        self._incarnation = incarnation
        self._outboxes = outboxes or {}
        self._ready = ready
        self._accounts = accounts or Accounts()
        self._keys = itertools.count()
        self._asked: dict[int, asyncio.Future[EnteredKey]] = {}
        self._places: dict[Stay, Place] = {}
        self._counted: dict[Stay, Counted] = {}
        self._told = self._looked = self._accounts.clock()
        self._lived = 0.0
        self._alive: Mapping[str, int | None] = {}

    def keeper(self, name: str) -> str:
        """Of this key."""
        all_ = sorted([self._name, *self._outboxes])
        first = zlib.crc32(name.encode()) % len(all_)
        return next(other for other in (all_ + all_)[first:] if other == self._name or self._ready(other) is not None)

    @asynccontextmanager
    async def entered(self, name: str, limits: KeyLimits, used: Used) -> AsyncIterator[Place]:
        """While a request of this key runs. Raises ApiError 429 when it may not."""
        place = await self.enter(name, limits, used)
        try:
            yield place
        finally:
            self.leave(place)

    async def enter(self, name: str, limits: KeyLimits, used: Used, instead: Stay | None = None) -> Place:
        """Count a request of this key until `leave`, where `instead` is still counted in its place. Raises ApiError 429 when it may not run."""
        place = self._place(name, limits, used)
        if not limits:
            return place
        keeper, answer = self.keeper(name), None
        if keeper != self._name:
            self._is_at(place, keeper)
            answer = await self._ask(keeper, self._question(place, instead=instead))
        if answer is None:
            self._count(place.stay, name, limits, used, instead)
            self._is_at(place, self._name)
        elif answer.problem is not None:
            raise ApiError.of(answer.problem, answer.headers)
        else:
            headers = answer.headers
            place.headers, place.known = (lambda: headers), True
        if instead is not None and (old := self._places.pop(instead, None)) is not None:
            self._end(old)
        self._places[place.stay] = place
        return place

    def go_on(self, name: str, limits: KeyLimits, used: Used) -> Place:
        """As `enter`, for what was let in before this process began: it is counted whatever the limits are. Its keeper hears of it by and by."""
        place = self._place(name, limits, used)
        if limits:
            self._count(place.stay, name, limits, used, accepted=True)
            self._is_at(place, self._name)
            self._places[place.stay] = place
        return place

    def pass_on(self, stay: Stay) -> None:
        """Another frontend is about to take the place of this request (`enter` there)."""
        if stay in self._places:
            self._places[stay].passed_on = True

    def leave(self, place: Place) -> None:
        """It is over. May be called again, and for one that another has taken the place of."""
        if self._places.pop(place.stay, None) is not None:
            self._end(place)

    def _place(self, name: str, limits: KeyLimits, used: Used) -> Place:
        return Place(name, limits, used, Stay(self._name, self._incarnation, next(self._keys)))

    def _is_at(self, place: Place, keeper: str) -> None:
        place.keeper, place.known = keeper, False
        place.at = None if keeper == self._name else self._ready(keeper)
        if keeper == self._name:
            place.headers = lambda: self._accounts.headers(place.name)

    def _question(self, place: Place, accepted: bool = False, instead: Stay | None = None) -> EnterKey:
        limits = {name: getattr(place.limits, name) for name in place.limits.__struct_fields__}
        stay = place.stay
        return EnterKey(
            frontend=stay.frontend,
            incarnation=stay.incarnation,
            key=stay.key,
            name=place.name,
            tokens=place.tokens,
            accepted=accepted,
            instead=instead,
            **limits,
        )

    async def _ask(self, keeper: str, question: EnterKey) -> EnteredKey | None:
        """None when it does not answer in time."""
        future = self._asked[question.key] = asyncio.get_running_loop().create_future()
        try:
            self._outboxes[keeper].send(question)
            with contextlib.suppress(TimeoutError):
                return await asyncio.wait_for(future, PATIENCE_SECONDS)
            return None
        finally:
            del self._asked[question.key]

    def _tell(self, keeper: str, key: int, tokens: int = 0, over: bool = False) -> None:
        self._outboxes[keeper].send(UsedKey(frontend=self._name, incarnation=self._incarnation, key=key, tokens=tokens, over=over))

    def _end(self, place: Place) -> None:
        """Where it is counted, it is no longer."""
        if place.keeper == self._name:
            self._discount(place.stay)
        else:
            self._tell(place.keeper, place.stay.key, place.tokens, over=True)

    def receive(self, message: OfKeys) -> None:
        """From another frontend. One that is unknown is not answered."""
        match message:
            case EnterKey():
                if message.frontend in self._outboxes:
                    self._outboxes[message.frontend].send(self._let_in(message))
            case EnteredKey():
                self._hear(message)
            case UsedKey():
                self._note(message)

    def _hear(self, message: EnteredKey) -> None:
        future = self._asked.get(message.key)
        place = self._places.get(Stay(self._name, self._incarnation, message.key))
        if future is not None and not future.done():
            future.set_result(message)
        elif place is not None and place.keeper == message.frontend:
            place.known = True
        elif message.problem is None and message.frontend in self._outboxes:  # it came too late: the request is not counted there after all
            self._tell(message.frontend, message.key, over=True)

    def _let_in(self, message: EnterKey) -> EnteredKey:
        stay = Stay(message.frontend, message.incarnation, message.key)
        limits = KeyLimits(requests=message.requests, rpm=message.rpm, tpm=message.tpm)
        if stay not in self._counted:
            guest = Elsewhere(self._accounts.clock(), message.tokens)
            try:
                self._count(stay, message.name, limits, guest, message.instead, message.accepted)
            except ApiError as error:
                problem = Problem(status=error.status, code=error.code or "", message=error.message, retry_after=error.retry_after)
                return EnteredKey(frontend=self._name, key=message.key, problem=problem, headers=self._accounts.headers(message.name))
        self._counted[stay].heard = self._lived
        return EnteredKey(frontend=self._name, key=message.key, headers=self._accounts.headers(message.name))

    def _count(self, stay: Stay, name: str, limits: KeyLimits, used: Used, instead: Stay | None = None, accepted: bool = False) -> None:
        """From now on, here. Raises ApiError 429."""
        before = None if instead is None else self._counted.get(instead)
        if instead is not None and before is not None and before.name == name:
            self._accounts.go_on(name, limits, used, before.used)
            del self._counted[instead]
        elif accepted:
            self._accounts.go_on(name, limits, used)
        else:
            self._accounts.enter(name, limits, used)
        self._counted[stay] = Counted(name, used, self._lived)

    def _discount(self, stay: Stay) -> None:
        if (counted := self._counted.pop(stay, None)) is not None:
            self._accounts.leave(counted.name, counted.used)

    def _note(self, message: UsedKey) -> None:
        stay = Stay(message.frontend, message.incarnation, message.key)
        counted = self._counted.get(stay)
        if counted is None or not isinstance(counted.used, Elsewhere):
            return
        counted.heard = self._lived
        counted.used.prompt_tokens = max(counted.used.prompt_tokens, message.tokens)
        if message.over:
            self._discount(stay)

    def follow(self) -> None:
        """Time has passed: say what requests have used so far, and let go of what dead frontends had and of what nobody tells of."""
        now = self._accounts.clock()
        self._lived += min(max(0.0, now - self._looked), TELL_SECONDS)
        self._looked = now
        alive = {name: self._ready(name) for name in self._outboxes}
        if now - self._told >= TELL_SECONDS or alive != self._alive:
            self._tell_all(forgotten=now - self._told > SILENT_SECONDS / 2)
            self._told, self._alive = now, alive
        for stay in [stay for stay, counted in self._counted.items() if self._is_over(stay, counted, alive)]:
            self._discount(stay)

    def _is_over(self, stay: Stay, counted: Counted, alive: Mapping[str, int | None]) -> bool:
        if stay.frontend == self._name:
            return False
        return alive.get(stay.frontend) not in (None, stay.incarnation) or self._lived - counted.heard > SILENT_SECONDS

    def _tell_all(self, forgotten: bool) -> None:
        """What runs here, to those who count it. `forgotten`: they may have heard nothing for too long."""
        keepers = {name: self.keeper(name) for name in {place.name for place in self._places.values()}}
        alive = {name: self._ready(name) for name in self._outboxes}
        for place in self._places.values():
            keeper = keepers[place.name]
            if place.passed_on:
                continue
            if (place.keeper, place.at) != (keeper, alive.get(keeper)):
                self._move(place, keeper)
            elif keeper == self._name:
                continue
            elif forgotten or not place.known:
                self._outboxes[keeper].send(self._question(place, accepted=True))
            else:
                self._tell(keeper, place.stay.key, place.tokens)

    def _move(self, place: Place, keeper: str) -> None:
        """It is counted by another one: who did before has died, or has come back."""
        self._end(place)
        self._is_at(place, keeper)
        if keeper == self._name:
            self._count(place.stay, place.name, place.limits, place.used, accepted=True)
        else:
            self._outboxes[keeper].send(self._question(place, accepted=True))
