"""One cluster through all that may be done to it while it serves: another model, one that does not load, a restart, a drain. No request fails."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from launcher.intake import unfinished
from messages.change import ModelOptions, ReloadCommand, ResumeCommand
from messages.cluster import ClusterState
from tests.support.cluster import ROOT, Cluster, environment, running_cluster
from tests.support.figures import caught
from tests.support.waiting import until

SLOTS, TOKENS, SHORT = 8, 200, 12
NAME = "served"
TRIES = 5


@pytest.fixture(scope="module")
def cluster(models: Path) -> Iterator[Cluster]:
    options = ["--served-model-name", NAME, "--max-slots", str(SLOTS), "--frontends", "2", "--generation-config", "off", "--grace", "100"]
    with running_cluster(models / "rand-byte", *options, "--hang-timeout", "0", stop_check=False) as running:
        yield running


def heard(state: ClusterState) -> bool:
    """Every frontend knows whether requests are taken."""
    return unfinished(state.processes, state.intake) is not None


async def launch(cluster: Cluster, *arguments: str, code: int = 0) -> str:
    """A command of launch.py; what it wrote. Fails unless it ends with `code`."""
    command = [sys.executable, str(ROOT / "launch.py"), "cluster", *arguments, "--port", str(cluster.port)]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cluster.root, env=environment(cluster.root), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == code, said.decode()
    return said.decode()


@contextlib.asynccontextmanager
async def client(cluster: Cluster) -> AsyncIterator[aiohttp.ClientSession]:
    """A new connection for each request, so that every frontend gets some."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(cluster.url, timeout=aiohttp.ClientTimeout(total=120), connector=connector) as session:
        yield session


def body(number: int, tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": f"Hello world {number} the cat", "max_tokens": tokens, "temperature": 0, "ignore_eos": True} | more


async def ask(session: aiohttp.ClientSession, number: int, tokens: int, **more: Any) -> str:
    """The text of a completion, or what went wrong."""
    async with session.post("/v1/completions", json=body(number, tokens, **more)) as response:
        answer = await response.json()
        return str(answer["choices"][0]["text"] if response.status == 200 else f"{response.status} {answer['error']['code']}")


async def stream(session: aiohttp.ClientSession, number: int, tokens: int, begun: asyncio.Event) -> str:
    """The same, streamed, saying when the first text was there."""
    text = ""
    async with session.post("/v1/completions", json=body(number, tokens, stream=True)) as response:
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                text += event["choices"][0]["text"] if "choices" in event else f"error {event['error']['code']}"
                begun.set()
    return text


@dataclass(frozen=True)
class Said:
    """What a model says, undisturbed: to streams, and to the short requests behind them."""

    streamed: list[str]
    short: list[str]


_said: dict[tuple[int, int], Said] = {}


async def undisturbed(cluster: Cluster, session: aiohttp.ClientSession) -> Said:
    state = cluster.state()
    if (known := _said.get((cluster.pid, state.serving))) is None:
        texts = await asyncio.gather(*(ask(session, number, tokens) for tokens in (TOKENS, SHORT) for number in range(SLOTS)))
        known = _said[cluster.pid, state.serving] = Said(texts[:SLOTS], texts[SLOTS:])
    return known


class Load:
    """As many streams as there are slots, all begun, and as many requests behind them in the line."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.streams: list[asyncio.Task[str]] = []
        self.queued: list[asyncio.Task[str]] = []

    async def begin(self) -> None:
        await self._stream()
        await self.queue()

    async def begin_and_stop(self, cluster: Cluster) -> None:
        """The worker is stopped in the midst of it, so that nothing ends before it goes on."""
        for _ in range(TRIES):
            await self._stream()
            if await caught(cluster, SLOTS):
                await self.queue()
                return
            await asyncio.gather(*self.streams)
        raise AssertionError("they have never run all at once")

    async def _stream(self) -> None:
        events = [asyncio.Event() for _ in range(SLOTS)]
        self.streams = [asyncio.create_task(stream(self._session, number, TOKENS, event)) for number, event in enumerate(events)]
        await asyncio.gather(*(event.wait() for event in events))

    async def queue(self) -> None:
        """Come back when all have been let in."""
        self.queued += [asyncio.create_task(ask(self._session, number, SHORT)) for number in range(SLOTS)]
        known = 0
        while known < len(self.streams) + len(self.queued) and not any(task.done() for task in self.streams):
            async with self._session.get("/v1/requests") as response:
                known = len((await response.json())["data"])

    async def check(self, old: Said, new: Said) -> None:
        """Streams got the one, those behind them the other."""
        assert await asyncio.gather(*self.streams) == old.streamed
        assert await asyncio.gather(*self.queued) == new.short * (len(self.queued) // SLOTS)


def told(cluster: Cluster) -> str:
    """What the change that goes on waits for."""
    change = cluster.state().change
    return "" if change is None else change.note


def over(cluster: Cluster) -> bool:
    """The last change is, and all processes are ready."""
    state = cluster.state()
    return state.ready and state.change is not None and state.change.over


@pytest.mark.timeout(240)
async def test_another_model_comes_under_load(cluster: Cluster, models: Path) -> None:
    async with client(cluster) as session:
        byte, load = await undisturbed(cluster, session), Load(session)
        await load.begin_and_stop(cluster)
        cluster.command(ReloadCommand(options=ModelOptions(model_path=str(models / "rand-spm"), own_name="rand-spm", block_size=8)))
        await until(lambda: told(cluster) == f"{SLOTS} running, {SLOTS} queued")
        cluster.kill("worker0")  # what runs goes on on the model that it began on
        await load.queue()
        await until(lambda: over(cluster), 90)
        facts = next(process.facts for process in cluster.state().processes if process.name == "scheduler")
        assert facts["block_size"] == 8
        spm = await undisturbed(cluster, session)
        assert not set(byte.streamed) & set(spm.streamed)
        await load.check(byte, spm)


@pytest.mark.slow
async def test_a_model_that_does_not_load_gives_way_to_the_one_before(cluster: Cluster, models: Path, tmp_path: Path) -> None:
    async with client(cluster) as session:
        expected, load = await undisturbed(cluster, session), Load(session)
        await load.begin()
        said = await launch(cluster, "reload", "--model", str(damaged(models / "rand-byte", tmp_path)), code=1)
        assert f"the reload failed, and {NAME} is served as before: worker0 ended while starting" in said
        assert "model.safetensors" in said
        await load.check(expected, expected)


def damaged(model: Path, folder: Path) -> Path:
    """A copy whose weights are none."""
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(b"not safetensors")
    return folder


@pytest.mark.slow
async def test_everything_is_started_again_and_the_port_always_answers(cluster: Cluster) -> None:
    async with client(cluster) as session:
        expected, load = await undisturbed(cluster, session), Load(session)
        before = {process.name: process.incarnation for process in cluster.state().processes}
        await load.begin()
        restarting, asked = asyncio.create_task(launch(cluster, "restart")), 0
        while not restarting.done():
            assert await ask(session, asked % SLOTS, SHORT) == expected.short[asked % SLOTS]
            asked += 1
        assert "every process" in await restarting
        await load.check(expected, expected)
        assert {process.name: process.incarnation for process in cluster.state().processes} == {name: number + 1 for name, number in before.items()}


@pytest.mark.timeout(240)
async def test_a_drain_lets_everything_finish_and_refuses_the_rest_and_so_does_a_signal(cluster: Cluster) -> None:
    """The last one: it ends the cluster."""
    async with client(cluster) as session:
        expected, load = await undisturbed(cluster, session), Load(session)
        await load.begin_and_stop(cluster)
        await launch(cluster, "drain", "--wait", "0", code=3)
        cluster.kill("worker0", signal.SIGCONT)
        await until(lambda: heard(cluster.state()))
        assert await ask(session, 0, SHORT) == "503 draining"
        async with session.get("/health/ready") as response, session.get("/health/live") as live:
            assert (response.status, response.headers["Retry-After"], live.status) == (503, "5", 200)
            assert (await response.json())["reason"].startswith("draining")
        assert "drained" in await launch(cluster, "drain")
        await load.check(expected, expected)
        cluster.command(ResumeCommand())
        await until(lambda: (state := cluster.state()).ready and heard(state))

        load = Load(session)
        await load.begin_and_stop(cluster)
        cluster.process.send_signal(signal.SIGTERM)
        cluster.kill("worker0", signal.SIGCONT)
        await load.check(expected, expected)
    assert await asyncio.to_thread(cluster.process.wait, 60) == 0
    assert not cluster.run_dir.exists()
