"""What each API key has used of its limits: requests at once, requests a minute, tokens a minute.

The two rates are token buckets: a minute's worth may be used at once, and as much comes back in a minute, evenly. A request is counted when it
comes. Its tokens are counted as they are computed, since nobody knows before how many there will be: so a key may come to owe some, and has to wait
until that is paid.
"""

import time
from collections.abc import Callable
from typing import Protocol

from frontend.errors import ApiError
from transport.key_file import KeyLimits

MINUTE = 60.0
MAX_IDLE = 1024
"""Accounts that owe nothing are forgotten when there are so many."""
WEIGHT = 0.2
UNKNOWN_SECONDS = 1.0
CONCURRENT, REQUESTS, TOKENS = "too_many_concurrent_requests", "requests_per_minute_exceeded", "tokens_per_minute_exceeded"


class Used(Protocol):
    """What a request has used so far (`frontend.record.Record`). `began` in monotonic seconds."""

    began: float

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...


def _tokens(used: Used) -> int:
    return used.prompt_tokens + used.completion_tokens


class Bucket:
    """`size` units a minute; 0: as many as one likes, and nothing is owed for them. The `level` may be below 0."""

    def __init__(self, size: int, now: float) -> None:
        self.size = size
        self.level = float(size)
        self._at = now

    def resize(self, size: int) -> None:
        """What was used stays used."""
        self.level += size - self.size
        self.size = size

    def fill(self, now: float) -> None:
        self.level = min(float(self.size), self.level + (now - self._at) * self.size / MINUTE) if self.size else 0.0
        self._at = now

    def seconds_to(self, level: float) -> float:
        """Until it is as full as that, if nothing is taken meanwhile."""
        return max(0.0, level - self.level) * MINUTE / self.size


class Account:
    """Of one key."""

    def __init__(self, limits: KeyLimits, now: float) -> None:
        self._limits = limits
        self._requests = Bucket(limits.rpm, now)
        self._tokens = Bucket(limits.tpm, now)
        self._running: dict[Used, int] = {}
        self._usual = UNKNOWN_SECONDS

    def enter(self, used: Used, limits: KeyLimits, now: float) -> None:
        """One more request, if the `limits`, which may be others than before, let it. Raises ApiError 429."""
        self._limit(limits, now)
        if limits.requests and len(self._running) >= limits.requests:
            oldest = min(other.began for other in self._running)
            message = f"This API key may have {limits.requests} requests at once, and has {len(self._running)}."
            raise ApiError(429, CONCURRENT, message, retry_after=self._usual - (now - oldest), more=self.headers(now))
        if limits.rpm and self._requests.level < 1:
            message = f"This API key may send {limits.rpm} requests a minute."
            raise ApiError(429, REQUESTS, message, retry_after=self._requests.seconds_to(1), more=self.headers(now))
        if limits.tpm and self._tokens.level <= 0:
            message = f"This API key may use {limits.tpm} tokens a minute, of prompts and answers."
            raise ApiError(429, TOKENS, message, retry_after=self._tokens.seconds_to(1), more=self.headers(now))
        self._requests.level -= 1
        self._running[used] = 0

    def _limit(self, limits: KeyLimits, now: float) -> None:
        self._settle(now)
        self._limits = limits
        self._requests.resize(limits.rpm)
        self._tokens.resize(limits.tpm)

    def go_on(self, used: Used, limits: KeyLimits, now: float, instead: Used | None = None) -> None:
        """One that was let in before runs, in the place of another that runs if there is one. What it has used until now is not counted again."""
        self._limit(limits, now)
        self._running[used] = _tokens(used)
        if instead is not None:
            del self._running[instead]

    def leave(self, used: Used, now: float) -> None:
        """It is over."""
        self._settle(now)
        del self._running[used]
        self._usual += WEIGHT * (now - used.began - self._usual)

    def _settle(self, now: float) -> None:
        """Take what requests have used since the last time."""
        self._requests.fill(now)
        self._tokens.fill(now)
        for used, taken in self._running.items() if self._tokens.size else ():
            self._running[used] = _tokens(used)
            self._tokens.level -= self._running[used] - taken

    def is_clear(self, now: float) -> bool:
        """Nothing of it would be missed."""
        self._settle(now)
        return not self._running and self._requests.level >= self._limits.rpm and self._tokens.level >= self._limits.tpm

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's x-ratelimit headers: the limits a minute, what is left of them now, and when all of it is there again."""
        self._settle(now)
        shown = {}
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket.size:
                shown[f"x-ratelimit-limit-{name}"] = str(bucket.size)
                shown[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.level)))
                shown[f"x-ratelimit-reset-{name}"] = duration(bucket.seconds_to(bucket.size))
        return shown


class Accounts:
    """By the names of keys. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._accounts: dict[str, Account] = {}

    def enter(self, name: str, limits: KeyLimits, used: Used) -> None:
        """One more request of a key with `limits`, until `leave`. Raises ApiError 429 when it may not run."""
        now = self.clock()
        self._account(name, limits, now).enter(used, limits, now)

    def go_on(self, name: str, limits: KeyLimits, used: Used, instead: Used | None = None) -> None:
        """As `enter` for a request that was let in before, or (`instead`) is to be counted in the place of one that runs."""
        now = self.clock()
        self._account(name, limits, now).go_on(used, limits, now, instead)

    def _account(self, name: str, limits: KeyLimits, now: float) -> Account:
        if name not in self._accounts:
            self._forget(now)
            self._accounts[name] = Account(limits, now)
        return self._accounts[name]

    def leave(self, name: str, used: Used) -> None:
        """It is over."""
        self._accounts[name].leave(used, self.clock())

    def _forget(self, now: float) -> None:
        if len(self._accounts) >= MAX_IDLE:
            self._accounts = {name: account for name, account in self._accounts.items() if not account.is_clear(now)}

    def headers(self, name: str) -> dict[str, str]:
        """For an answer to this key."""
        account = self._accounts.get(name)
        return {} if account is None else account.headers(self.clock())


def duration(seconds: float) -> str:
    """As OpenAI writes it: 120ms, 8.64s, 6m0s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    if seconds < MINUTE:
        return f"{seconds:.3g}s"
    return f"{int(seconds // MINUTE)}m{round(seconds % MINUTE)}s"
