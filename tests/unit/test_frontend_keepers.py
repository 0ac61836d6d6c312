"""Several frontends as one where the limits of a key are counted: whoever gets its requests, it has them once; and what holds when one is gone."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import pytest

from frontend import keepers as module
from frontend.accounts import CONCURRENT, REQUESTS, TOKENS, Accounts
from frontend.errors import ApiError
from frontend.keepers import Keepers, Place
from messages.peers import EnteredKey, EnterKey, FromPeer, UsedKey
from transport.key_file import UNLIMITED, KeyLimits

NAMES = ("frontend0", "frontend1", "frontend2")


@dataclass(eq=False)
class Request:
    began: float
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Wire:
    """To one frontend from another, by way of the bytes. Nothing arrives at one that hangs, and nothing that gets lost."""

    def __init__(self, site: "Site", target: str) -> None:
        self._site = site
        self._target = target

    def send(self, message: msgspec.Struct) -> bool:
        self._site.sent.append(message)
        if self._target not in self._site.hung and not self._site.lost(message):
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
        self.lost: Callable[[msgspec.Struct], bool] = lambda message: False
        self.sent: list[msgspec.Struct] = []
        self.keepers: dict[str, Keepers] = {}
        for name in NAMES:
            self.start(name, 1)

    def start(self, name: str, incarnation: int) -> None:
        outboxes = {other: Wire(self, other) for other in NAMES if other != name}
        self.incarnations[name] = incarnation
        self.keepers[name] = Keepers(name, incarnation, outboxes, lambda other: self.incarnations[other], Accounts(lambda: self.now))

    def entered(self, frontend: str, limits: KeyLimits, used: Request | None = None) -> "contextlib.AbstractAsyncContextManager[Place]":
        return self.keepers[frontend].entered("alice", limits, used or Request(self.now))

    async def refusal(self, frontend: str, limits: KeyLimits) -> ApiError:
        with pytest.raises(ApiError) as error:
            async with self.entered(frontend, limits):
                pass
        return error.value

    async def pass_seconds(self, seconds: int) -> None:
        """In which all that do not hang look what the time is."""
        for _ in range(seconds):
            self.now += 1.0
            await self.look()

    async def look(self) -> None:
        """All that do not hang see who is there."""
        for name in NAMES:
            if self.incarnations[name] is not None and name not in self.hung:
                self.keepers[name].follow()
        await settled()

    @property
    def keeper(self) -> str:
        return self.keepers["frontend0"].keeper("alice")

    @property
    def away(self) -> str:
        """One that is not the key's keeper."""
        return next(name for name in NAMES if name != self.keeper)

    @property
    def counted(self) -> int:
        """Requests that living frontends count."""
        return sum(len(self.keepers[name]._counted) for name in NAMES if self.incarnations[name] is not None)


async def settled() -> None:
    """What was sent has arrived, and so has what was answered."""
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.fixture
async def site() -> Site:
    return Site()


async def test_all_agree_on_the_keeper_and_keys_are_spread(site: Site) -> None:
    found = [{keeper.keeper(f"key{number}") for keeper in site.keepers.values()} for number in range(60)]
    assert all(len(names) == 1 for names in found)
    assert set.union(*found) == set(NAMES)
    site.incarnations["frontend1"] = None
    assert {site.keepers["frontend0"].keeper(f"key{number}") for number in range(60)} == {"frontend0", "frontend2"}
    assert Keepers("frontend0").keeper("alice") == "frontend0"


async def test_without_limits_nobody_is_asked(site: Site) -> None:
    async with site.entered("frontend0", UNLIMITED) as place:
        assert place.headers() == {}
    assert site.sent == []


async def test_requests_at_once_are_counted_over_all_frontends(site: Site) -> None:
    limits = KeyLimits(requests=3)
    async with site.entered("frontend0", limits), site.entered("frontend1", limits), site.entered("frontend2", limits):
        for name in NAMES:
            assert (await site.refusal(name, limits)).code == CONCURRENT
    await settled()
    async with site.entered("frontend1", limits):
        assert site.counted == 1
    await settled()
    assert site.counted == 0


async def test_rates_are_those_of_all_and_told_by_each(site: Site) -> None:
    limits = KeyLimits(rpm=4)
    left = []
    for name in (*NAMES, NAMES[0]):
        async with site.entered(name, limits) as place:
            left.append(place.headers()["x-ratelimit-remaining-requests"])
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


async def test_a_keeper_that_does_not_answer_is_not_waited_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is counted where it is; and when the keeper goes on, it does not count it for ever."""
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.05)
    limits, keeper = KeyLimits(requests=1), site.keepers["frontend0"].keeper("alice")
    away = next(name for name in NAMES if name != keeper)
    site.hung.add(keeper)
    async with site.entered(away, limits):
        assert (await site.refusal(away, limits)).code == CONCURRENT
    site.hung.clear()
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 30.0)
    for message in [message for message in site.sent if isinstance(message, EnterKey)]:
        site.keepers[keeper].receive(message)
    await settled()
    assert site.counted == 0
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
    await settled()
    assert site.counted == 0


async def test_strangers_are_not_answered(site: Site) -> None:
    site.keepers["frontend0"].receive(EnterKey(frontend="nobody", incarnation=1, key=1, name="alice", requests=1))
    site.keepers["frontend0"].receive(UsedKey(frontend="frontend1", incarnation=1, key=99, tokens=5, over=True))
    await asyncio.sleep(0)
    assert site.sent == []
    assert site.counted == 0


@pytest.mark.parametrize("asked", NAMES)
@pytest.mark.parametrize("runs", NAMES)
async def test_work_that_outlasts_its_request_takes_its_place(site: Site, asked: str, runs: str) -> None:
    """In the same frontend or in another one: it is counted once, and the request for the rate once, whatever of both ends first."""
    limits = KeyLimits(requests=1, rpm=2)
    for work_first in (False, True):
        async with site.entered(asked, limits) as place:
            if runs != asked:
                site.keepers[asked].pass_on(place.stay)
            work = await site.keepers[runs].enter("alice", limits, Request(site.now), place.stay)
            await site.pass_seconds(2)
            assert site.counted == 1
            for name in NAMES:
                assert (await site.refusal(name, limits)).code == CONCURRENT
            if work_first:
                site.keepers[runs].leave(work)
        await settled()
        if not work_first:
            assert site.counted == 1
            site.keepers[runs].leave(work)
            await settled()
        assert site.counted == 0
    assert (await site.refusal(asked, limits)).code == REQUESTS, "two requests have come, and no more"


async def test_work_whose_request_is_over_is_let_in_like_any_other(site: Site) -> None:
    """So nobody gets more at once by going away early."""
    limits = KeyLimits(requests=1)
    async with site.entered(site.away, limits) as place:
        pass
    await settled()
    async with site.entered(site.keeper, limits):
        with pytest.raises(ApiError) as error:
            await site.keepers[site.away].enter("alice", limits, Request(site.now), place.stay)
        assert (error.value.code, error.value.headers()["Retry-After"]) == (CONCURRENT, "1")
    work = await site.keepers[site.away].enter("alice", limits, Request(site.now), place.stay)
    assert (await site.refusal(site.keeper, limits)).code == CONCURRENT
    site.keepers[site.away].leave(work)


async def test_an_end_that_gets_lost_keeps_no_place_for_ever(site: Site) -> None:
    limits = KeyLimits(requests=2)
    async with site.entered(site.away, limits):
        site.lost = lambda message: isinstance(message, UsedKey) and message.over
        async with site.entered(site.away, limits):
            pass
        await site.pass_seconds(29)
        assert (await site.refusal(site.away, limits)).code == CONCURRENT
        await site.pass_seconds(3)
        assert site.counted == 1, "the one that runs is told of"
        site.lost = lambda message: False
        async with site.entered(site.away, limits):
            pass
    await settled()
    assert site.counted == 0


async def test_a_keeper_that_did_not_run_does_not_take_others_for_silent(site: Site) -> None:
    limits = KeyLimits(requests=1)
    async with site.entered(site.away, limits):
        await site.pass_seconds(1)
        site.now += 3600.0
        site.keepers[site.keeper].follow()
        assert (await site.refusal(site.keeper, limits)).code == CONCURRENT


async def test_what_a_silent_frontend_runs_counts_again_when_it_goes_on(site: Site) -> None:
    limits, away = KeyLimits(requests=1), site.away
    async with site.entered(away, limits):
        site.hung.add(away)
        await site.pass_seconds(32)
        assert site.counted == 0
        site.hung.clear()
        await site.pass_seconds(1)
        assert (await site.refusal(site.keeper, limits)).code == CONCURRENT
    await settled()
    assert site.counted == 0


async def test_what_runs_is_counted_by_who_keeps_the_key_now(site: Site) -> None:
    """The keeper dies, and is back as another incarnation: whoever runs the requests, they are counted once, and what they had used is not again."""
    limits, keeper, (away, third) = KeyLimits(requests=2, tpm=100), site.keeper, [name for name in NAMES if name != site.keeper]
    used = Request(site.now, prompt_tokens=90)
    async with site.entered(away, limits, used), site.entered(third, limits):
        await site.pass_seconds(1)
        site.incarnations[keeper] = None
        await site.pass_seconds(1)
        assert site.counted == 2
        assert (await site.refusal(away, limits)).code == CONCURRENT
        used.completion_tokens = 30
        site.start(keeper, 2)
        site.lost = lambda message: isinstance(message, EnterKey)
        await site.pass_seconds(1)
        site.lost = lambda message: False
        await site.pass_seconds(1)
        assert site.counted == len(site.keepers[keeper]._counted) == 2
        assert (await site.refusal(third, limits)).code == CONCURRENT
        async with site.entered(keeper, KeyLimits(tpm=100)) as place:
            assert place.headers()["x-ratelimit-remaining-tokens"] == "100"
    await settled()
    assert site.counted == 0


async def test_a_late_word_of_who_counted_before_confirms_nothing(site: Site) -> None:
    limits, keeper = KeyLimits(requests=2), site.keeper
    after = (*NAMES, *NAMES)[NAMES.index(keeper) + 1]
    away = next(name for name in NAMES if name not in (keeper, after))
    async with site.entered(away, limits) as place:
        site.incarnations[keeper] = None
        site.lost = lambda message: isinstance(message, EnterKey)
        await site.look()
        site.lost = lambda message: False
        site.keepers[away].receive(EnteredKey(frontend=keeper, key=place.stay.key))
        await site.pass_seconds(1)
        assert len(site.keepers[after]._counted) == 1


async def test_who_has_gone_or_come_is_no_occasion_to_have_more(site: Site) -> None:
    """Not for the second either until the next one tells what runs."""
    limits, keeper, away = KeyLimits(requests=1), site.keeper, site.away
    async with site.entered(away, limits):
        await site.pass_seconds(1)
        site.incarnations[keeper] = None
        await site.look()
        assert (await site.refusal(site.keeper, limits)).code == CONCURRENT
        site.start(keeper, 2)
        await site.look()
        assert (await site.refusal(keeper, limits)).code == CONCURRENT
    site.start(away, 2)  # and takes up a journal, before it knows who else is there
    ready, site.incarnations = site.incarnations, dict.fromkeys(NAMES)
    place = site.keepers[away].go_on("alice", limits, Request(site.now))
    site.keepers[away].follow()
    site.incarnations = ready
    await site.look()
    assert (await site.refusal(keeper, limits)).code == CONCURRENT
    site.keepers[away].leave(place)


async def test_what_goes_on_after_a_restart_counts_whatever_the_limits_are(site: Site) -> None:
    """Also before it is known who else is there."""
    limits, away = KeyLimits(requests=1, rpm=1), site.away
    ready, site.incarnations = site.incarnations, dict.fromkeys(NAMES)
    places = [site.keepers[away].go_on("alice", limits, Request(site.now)) for _ in range(3)]
    site.incarnations = ready
    await site.pass_seconds(1)
    assert site.counted == len(site.keepers[site.keeper]._counted) == 3
    assert (await site.refusal(site.keeper, limits)).code == CONCURRENT
    for place in places:
        site.keepers[away].leave(place)
    await settled()
    async with site.entered(site.keeper, limits):
        pass
    assert (await site.refusal(away, limits)).code == REQUESTS
