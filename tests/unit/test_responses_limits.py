"""Background responses and the limits of the key that asked for them, in two frontends of which the first has the journal; and what else passes
between the two."""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web

from frontend.access import Access
from frontend.accounts import CONCURRENT, TOKENS
from frontend.args import FrontendArgs
from frontend.cluster import ClusterView
from frontend.core import Core
from frontend.dispatcher import Dispatcher
from frontend.keepers import Keepers
from frontend.metrics import Metrics
from frontend.record import Record
from frontend.responses import background
from frontend.responses.desk import Desk
from frontend.responses.journal_file import pack
from frontend.responses.links import Links, socket_path
from frontend.responses.private import make_private_app
from frontend.responses.restoring import open_journal
from frontend.service import make_app
from messages.cluster import READY, ClusterState, ProcessState
from messages.journal import TITLE
from messages.text import Ended, Started, TextDelta
from tests.support.journal_records import accepted
from tests.support.outbox import FakeTokenizer
from tests.support.waiting import until
from transport.key_file import KeyLimits, new_key

NAMES = ("frontend0", "frontend1")
PATH = "/v1/responses"
PEOPLE = ("alice", "bob", "carol", "dave")
KEPT_BY = {name: next(who for who in PEOPLE if zlib.crc32(who.encode()) % 2 == number) for number, name in enumerate(NAMES)}
"""A key for each of them to keep."""
LIMITS = KeyLimits(requests=2, tpm=100)


class Site:
    """`addresses`: where clients reach each frontend. `records`: of requests that have ended, by frontend."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = {who: new_key(who, limits=LIMITS) for who in KEPT_BY.values()}
        self._keys = {who: key for who, (key, _) in made.items()}
        self.access = Access(None, [line.text() for _, line in made.values()])
        self.tokenizers = {name: FakeTokenizer() for name in NAMES}
        self.records: dict[str, list[Record]] = {name: [] for name in NAMES}
        self.cores = {name: self._core(name) for name in NAMES}
        self.addresses: dict[str, tuple[str, int]] = {}

    def _core(self, name: str) -> Core:
        place: dict[str, Any] = {"run_dir": str(self.folder), "host": "", "port": 0, "model_name": "tiny", "tokenizers": ["tokenizer0"], "created": 0}
        args = FrontendArgs(name=name, incarnation=1, **place, keeper=NAMES[0])
        view = ClusterView(args.tokenizers, clock=lambda: 0.0)
        scheduler = ProcessState(name="scheduler", incarnation=1, pid=2, phase=READY, facts={"context": 100})
        processes = [ProcessState(name="tokenizer0", incarnation=1, pid=1, phase=READY), scheduler]
        view.update(ClusterState(ready=True, phase=READY, reason="", model="tiny", started=0.0, processes=processes))
        metrics = Metrics("tiny", view)
        others = [other for other in NAMES if other != name]
        counting = Keepers(name, 1, {other: Wire(self, other) for other in others}, lambda _: 1)
        return Core(
            args,
            view,
            metrics,
            Dispatcher(name, {"tokenizer0": self.tokenizers[name]}, view, metrics),
            access=self.access,
            keepers=counting,
            watchers=(self.records[name].append,),
            responses=Desk(name, NAMES[0], Links(args.run_dir, others)),
        )

    def as_(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._keys[who]}"}

    async def ask(self, frontend: str, who: str, method: str, path: str, **body: Any) -> tuple[int, Any, Any]:
        """Status, headers and JSON of one answer."""
        host, port = self.addresses[frontend]
        async with (
            aiohttp.ClientSession(headers=self.as_(who)) as session,
            session.request(method, f"http://{host}:{port}{path}", json=body or None) as answer,
        ):
            return answer.status, answer.headers, await answer.json()

    async def begin(self, frontend: str, who: str) -> tuple[int, Any, Any]:
        return await self.ask(frontend, who, "POST", PATH, input="A", background=True)

    async def check_refused(self, who: str, code: str = CONCURRENT) -> None:
        """Whichever frontend is asked."""
        for frontend in NAMES:
            status, headers, answer = await self.begin(frontend, who)
            assert (status, answer["error"]["code"]) == (429, code)
            assert int(headers["Retry-After"]) >= 1

    async def open_stream(self, frontend: str, who: str) -> tuple[asyncio.StreamWriter, bytes]:
        """A background response on a connection that stays open, and all that was sent on it: nothing comes before the tokenizer answers."""
        reader, writer = await asyncio.open_connection(*self.addresses[frontend])
        body = msgspec.json.encode({"input": "A", "background": True, "stream": True})
        lines = [f"POST {PATH} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in self.as_(who).items())]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        received = b""
        async with asyncio.timeout(30):
            while b"response.queued" not in received or not received.endswith(b"\n\n\r\n"):
                received += await reader.read(1 << 16)
        return writer, received

    def tell(self, prompt_tokens: int, end: bool = True) -> None:
        """What the first frontend's tokenizer says of what it was asked last."""
        key, dispatcher = self.tokenizers[NAMES[0]].asked[-1].keys[0], self.cores[NAMES[0]].dispatcher
        dispatcher.receive(Started(key, prompt_tokens))
        dispatcher.receive(TextDelta(key, "A", [7]))
        if end:
            dispatcher.receive(Ended(key=key, finish="stop", completion_tokens=1))

    def running(self) -> int:
        return len(self.cores[NAMES[0]].responses.store.running)


class Wire:
    """To the keepers of one frontend."""

    def __init__(self, site: Site, target: str) -> None:
        self._site = site
        self._target = target

    def send(self, message: Any) -> bool:
        asyncio.get_running_loop().call_soon(self._site.cores[self._target].keepers.receive, message)
        return True


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    async with contextlib.AsyncExitStack() as stack:
        for name, core in site.cores.items():
            public, private = runners = [
                web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1) for app in (make_app(core), make_private_app(core))
            ]
            for runner in runners:
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
            stack.push_async_callback(background.close, core)
            await web.TCPSite(public, "127.0.0.1", 0).start()
            await web.UnixSite(private, socket_path(str(tmp_path), name)).start()
            site.addresses[name] = public.addresses[0]
        yield site


@pytest.mark.parametrize("asked", NAMES)
@pytest.mark.parametrize("keeper", NAMES)
async def test_work_counts_for_its_key_until_it_has_ended(site: Site, asked: str, keeper: str) -> None:
    """Once, with its request that follows it and without, whoever was asked and whoever counts; all of it runs in the first frontend."""
    who = KEPT_BY[keeper]
    writer, _ = await site.open_stream(asked, who)
    assert (await site.begin(asked, who))[0] == 200
    assert site.running() == 2
    await site.check_refused(who)
    site.tell(7)
    await until(lambda: site.running() == 1)
    assert (await site.begin(asked, who))[0] == 200
    await site.check_refused(who)
    writer.close()
    await until(lambda: any(record.status == 499 for record in site.records[asked]))
    await site.check_refused(who)
    for name in list(site.cores[NAMES[0]].responses.store.running):
        assert (await site.ask(asked, who, "POST", f"{PATH}/{name}/cancel"))[0] == 200
    await until(lambda: not any(core.keepers._counted for core in site.cores.values()))
    assert {core.keepers.keeper(who) for core in site.cores.values()} == {keeper}


async def test_its_tokens_count_as_they_are_computed(site: Site) -> None:
    who = KEPT_BY[NAMES[0]]
    assert (await site.begin(NAMES[0], who))[0] == 200
    await until(lambda: len(site.tokenizers[NAMES[0]].asked) == 1)
    site.tell(150, end=False)
    await site.check_refused(who, TOKENS)


async def test_what_goes_on_from_the_journal_counts(site: Site) -> None:
    """More than the key may have at once."""
    who, path, core = KEPT_BY[NAMES[1]], site.folder / "journal", site.cores[NAMES[0]]
    path.write_bytes(TITLE + b"".join(pack(accepted(number, key=who)) for number in range(3)))
    await open_journal(core, str(path))
    core.keepers._told -= 1.0
    core.keepers.follow()  # and the key's keeper hears of them
    await until(lambda: len(site.cores[NAMES[1]].keepers._counted) == 3)
    await site.check_refused(who)
    for kept in list(core.responses.store.running.values())[:2]:
        await background.cancel(core, kept)
    await until(lambda: len(site.cores[NAMES[1]].keepers._counted) == 1)
    assert (await site.begin(NAMES[1], who))[0] == 200


async def test_a_mistake_behind_a_link_is_an_answer(site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it would be at the frontend itself; and the next one is served."""
    who = KEPT_BY[NAMES[0]]
    name = (await site.begin(NAMES[1], who))[2]["id"]
    with monkeypatch.context() as patch:
        patch.setattr(site.cores[NAMES[0]].responses.store, "find", None)
        status, _, answer = await site.ask(NAMES[1], who, "GET", f"{PATH}/{name}")
    assert (status, answer["error"]["code"], answer["error"]["type"]) == (500, "internal_error", "server_error")
    assert caplog.text.count("Traceback") == 1
    assert (await site.ask(NAMES[1], who, "GET", f"{PATH}/{name}"))[0] == 200


@pytest.mark.parametrize("asked", NAMES)
async def test_bytes_that_a_client_got_before_it_went_are_counted(site: Site, asked: str) -> None:
    """Of a stream that is followed, and of one that another frontend sends."""
    writer, received = await site.open_stream(asked, KEPT_BY[NAMES[0]])
    writer.close()
    await until(lambda: any(record.status == 499 for record in site.records[asked]))
    (record,) = [record for record in site.records[asked] if record.status == 499]
    assert record.sent == len(received)
