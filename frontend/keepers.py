"""Which of the frontends on one port counts for an API key with limits, and the way to it: so a key has its limits once, whatever the kernel does
with its connections.

A key's keeper follows from its name and from who is ready. When it dies, another one begins to count anew; when it does not answer, the frontend
that has the request counts it by itself.
"""

import asyncio
import contextlib
import itertools
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from frontend.accounts import Accounts, Used
from frontend.errors import ApiError
from frontend.streams import Sender
from messages.peers import EnteredKey, EnterKey, OfKeys, UsedKey
from messages.text import Problem
from transport.key_file import KeyLimits

PATIENCE_SECONDS = 0.5
TELL_SECONDS = 1.0
Headers = Callable[[], Mapping[str, str]]
Stay = tuple[str, int, int]


class Elsewhere:
    """A request that another frontend has."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.prompt_tokens = 0
        self.completion_tokens = 0


def nothing() -> Mapping[str, str]:
    """The headers of a key without limits."""
    return {}


def _tokens(used: Used) -> int:
    return used.prompt_tokens + used.completion_tokens


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
        self._away: dict[int, tuple[str, Used]] = {}
        self._guests: dict[Stay, tuple[str, Elsewhere]] = {}
        self._told = 0.0

    def keeper(self, name: str) -> str:
        """Of this key."""
        all_ = sorted([self._name, *self._outboxes])
        first = zlib.crc32(name.encode()) % len(all_)
        return next(other for other in (all_ + all_)[first:] if other == self._name or self._ready(other) is not None)

    @asynccontextmanager
    async def entered(self, name: str, limits: KeyLimits, used: Used) -> AsyncIterator[Headers]:
        """While a request of this key runs; gives the headers of its answer. Raises ApiError 429 when it may not."""
        if not limits:
            yield nothing
            return
        keeper = self.keeper(name)
        key, answer = next(self._keys), None
        if keeper != self._name:
            answer = await self._ask(keeper, EnterKey(frontend=self._name, incarnation=self._incarnation, key=key, name=name, **_named(limits)))
        if answer is None:
            self._accounts.enter(name, limits, used)
            try:
                yield lambda: self._accounts.headers(name)
            finally:
                self._accounts.leave(name, used)
            return
        if answer.problem is not None:
            raise ApiError.of(answer.problem, answer.headers)
        self._away[key] = keeper, used
        try:
            yield lambda: answer.headers
        finally:
            del self._away[key]
            self._tell(keeper, key, used, over=True)

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

    def _tell(self, keeper: str, key: int, used: Used | None, over: bool) -> None:
        tokens = 0 if used is None else _tokens(used)
        self._outboxes[keeper].send(UsedKey(frontend=self._name, incarnation=self._incarnation, key=key, tokens=tokens, over=over))

    def receive(self, message: OfKeys) -> None:
        """From another frontend. One that is unknown is not answered."""
        match message:
            case EnterKey():
                if message.frontend in self._outboxes:
                    self._outboxes[message.frontend].send(self._let_in(message))
            case EnteredKey():
                future = self._asked.get(message.key)
                if future is not None and not future.done():
                    future.set_result(message)
                elif message.problem is None:  # nobody waits for it any more: the request is not counted there after all
                    for keeper in self._outboxes:
                        self._tell(keeper, message.key, None, over=True)
            case UsedKey():
                self._note(message)

    def _let_in(self, message: EnterKey) -> EnteredKey:
        guest = Elsewhere(self._accounts.clock())
        limits = KeyLimits(requests=message.requests, rpm=message.rpm, tpm=message.tpm)
        try:
            self._accounts.enter(message.name, limits, guest)
        except ApiError as error:
            problem = Problem(status=error.status, code=error.code or "", message=error.message, retry_after=error.retry_after)
            return EnteredKey(key=message.key, problem=problem, headers=self._accounts.headers(message.name))
        self._guests[message.frontend, message.incarnation, message.key] = message.name, guest
        return EnteredKey(key=message.key, headers=self._accounts.headers(message.name))

    def _note(self, message: UsedKey) -> None:
        stay = message.frontend, message.incarnation, message.key
        if (found := self._guests.get(stay)) is None:
            return
        name, guest = found
        guest.prompt_tokens = max(guest.prompt_tokens, message.tokens)
        if message.over:
            del self._guests[stay]
            self._accounts.leave(name, guest)

    def follow(self) -> None:
        """Time has passed: say what requests have used so far, and let go of what dead frontends had."""
        now = self._accounts.clock()
        if self._away and now - self._told >= TELL_SECONDS:
            self._told = now
            for key, (keeper, used) in self._away.items():
                self._tell(keeper, key, used, over=False)
        for stay in [stay for stay in self._guests if (alive := self._ready(stay[0])) is not None and alive != stay[1]]:
            name, guest = self._guests.pop(stay)
            self._accounts.leave(name, guest)


def _named(limits: KeyLimits) -> dict[str, int]:
    return {name: getattr(limits, name) for name in limits.__struct_fields__}
