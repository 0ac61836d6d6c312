"""Several frontends as one where the limits of a key are counted: whoever gets its requests, it has them once; and what holds when one is gone."""

import asyncio
import contextlib
from dataclasses import dataclass

import msgspec
import pytest

from frontend import keepers as module
from frontend.accounts import CONCURRENT, REQUESTS, TOKENS, Accounts
from frontend.errors import ApiError
from frontend.keepers import Keepers
from messages.peers import EnteredKey, EnterKey, FromPeer, UsedKey
from transport.key_file import UNLIMITED, KeyLimits

NAMES = ("frontend0", "frontend1", "frontend2")


@dataclass(eq=False)
class Request:
    began: float
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Wire:
    """To one frontend from another, by way of the bytes. Nothing arrives at one that hangs."""

    def __init__(self, site: "Site", target: str) -> None:
        self._site = site
        self._target = target

    def send(self, message: msgspec.Struct) -> bool:
        self._site.sent.append(message)
        if self._target not in self._site.hung:
            again = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromPeer)
            assert isinstance(again, EnterKey | EnteredKey | UsedKey)
            asyncio.get_running_loop().call_soon(self._site.keepers[self._target].receive, again)
        return True


class Site:
    """Three frontends."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.incarnations: dict[str, int | None] = dict.fromkeys(NAMES, 1)
        self.hung: set[str] = set()
        self.sent: list[msgspec.Struct] = []
        self.keepers: dict[str, Keepers] = {}
        for name in NAMES:
            self.start(name, 1)

    def start(self, name: str, incarnation: int) -> None:
        outboxes = {other: Wire(self, other) for other in NAMES if other != name}
        self.incarnations[name] = incarnation
        self.keepers[name] = Keepers(name, incarnation, outboxes, lambda other: self.incarnations[other], Accounts(lambda: self.now))

    def entered(self, frontend: str, limits: KeyLimits, used: Request | None = None) -> "contextlib.AbstractAsyncContextManager[module.Headers]":
        return self.keepers[frontend].entered("alice", limits, used or Request(self.now))

    async def refusal(self, frontend: str, limits: KeyLimits) -> ApiError:
        with pytest.raises(ApiError) as error:
            async with self.entered(frontend, limits):
                pass
        return error.value

    @property
    def guests(self) -> int:
        return sum(len(keeper._guests) for keeper in self.keepers.values())


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.05)
    return Site()


async def test_all_agree_on_the_keeper_and_keys_are_spread(site: Site) -> None:
    found = [{keeper.keeper(f"key{number}") for keeper in site.keepers.values()} for number in range(60)]
    assert all(len(names) == 1 for names in found)
    assert set.union(*found) == set(NAMES)
    site.incarnations["frontend1"] = None
    assert {site.keepers["frontend0"].keeper(f"key{number}") for number in range(60)} == {"frontend0", "frontend2"}
    assert Keepers("frontend0").keeper("alice") == "frontend0"


async def test_without_limits_nobody_is_asked(site: Site) -> None:
    async with site.entered("frontend0", UNLIMITED) as headers:
        assert headers() == {}
    assert site.sent == []


async def test_requests_at_once_are_counted_over_all_frontends(site: Site) -> None:
    limits = KeyLimits(requests=3)
    async with site.entered("frontend0", limits), site.entered("frontend1", limits), site.entered("frontend2", limits):
        for name in NAMES:
            assert (await site.refusal(name, limits)).code == CONCURRENT
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    async with site.entered("frontend1", limits):
        assert site.guests <= 1
    await asyncio.sleep(0)
    assert site.guests == 0


async def test_rates_are_those_of_all_and_told_by_each(site: Site) -> None:
    limits = KeyLimits(rpm=4)
    left = []
    for name in (*NAMES, NAMES[0]):
        async with site.entered(name, limits) as headers:
            left.append(headers()["x-ratelimit-remaining-requests"])
    assert left == ["3", "2", "1", "0"]
    for name in NAMES:
        error = await site.refusal(name, limits)
        assert error.code == REQUESTS
        assert error.headers()["Retry-After"] == "15"
        assert error.headers()["x-ratelimit-remaining-requests"] == "0"


async def test_tokens_are_told_while_requests_run_and_at_their_end(site: Site) -> None:
    limits, away = KeyLimits(tpm=100), next(name for name in NAMES if name != site.keepers["frontend0"].keeper("alice"))
    used = Request(site.now)
    async with site.entered(away, limits, used):
        used.prompt_tokens, used.completion_tokens = 60, 50
        async with site.entered(away, limits):
            pass
        site.now += 1.5
        site.keepers[away].follow()
        await asyncio.sleep(0)
        for name in NAMES:
            assert (await site.refusal(name, limits)).code == TOKENS
        used.completion_tokens = 1060
        site.keepers[away].follow()
        assert sum(isinstance(message, UsedKey) and not message.over for message in site.sent) == 1, "once a second"
    await asyncio.sleep(0)
    error = await site.refusal(away, limits)
    assert 590 < int(error.headers()["Retry-After"]) < 640


async def test_a_keeper_that_does_not_answer_is_not_waited_for(site: Site) -> None:
    """The request is counted where it is; and when the keeper goes on, it does not count it for ever."""
    limits, keeper = KeyLimits(requests=1), site.keepers["frontend0"].keeper("alice")
    away = next(name for name in NAMES if name != keeper)
    site.hung.add(keeper)
    async with site.entered(away, limits):
        assert (await site.refusal(away, limits)).code == CONCURRENT
    site.hung.clear()
    for message in [message for message in site.sent if isinstance(message, EnterKey)]:
        site.keepers[keeper].receive(message)
    for _ in range(4):
        await asyncio.sleep(0)
    assert site.guests == 0
    async with site.entered(away, limits):
        pass


async def test_what_a_dead_frontend_had_is_over(site: Site) -> None:
    limits, keeper = KeyLimits(requests=1), site.keepers["frontend0"].keeper("alice")
    away = next(name for name in NAMES if name != keeper)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(site.entered(away, limits))
        site.incarnations[away] = None
        site.keepers[keeper].follow()
        assert (await site.refusal(keeper, limits)).code == CONCURRENT, "it may only hang"
        site.start(away, 2)
        site.keepers[keeper].follow()
        async with site.entered(away, limits):
            assert (await site.refusal(keeper, limits)).code == CONCURRENT
    await asyncio.sleep(0)
    assert site.guests == 0


async def test_strangers_are_not_answered(site: Site) -> None:
    site.keepers["frontend0"].receive(EnterKey(frontend="nobody", incarnation=1, key=1, name="alice", requests=1))
    site.keepers["frontend0"].receive(UsedKey(frontend="frontend1", incarnation=1, key=99, tokens=5, over=True))
    await asyncio.sleep(0)
    assert site.sent == []
    assert site.guests == 0
