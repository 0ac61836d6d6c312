"""The worker is killed, hangs, or dies of a request: the others say what they say undisturbed, and requests that come meanwhile wait."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import ROOT, Cluster, environment, running_cluster
from tests.support.completions import body_of, complete, events, open_session
from tests.support.devices import CLUSTERS, on_gpu
from tests.support.waiting import until

SCRIPT = ROOT / "tests" / "support" / "launch_broken.py"
PROMPTS = [[(31 * position + 7 * row) % 250 for position in range(length)] for row, length in enumerate((90, 20, 150, 7))]
TOKENS = 40
PATIENCE = 240.0
AWAY_SECONDS = 0.5
"""A worker that has died is away for longer."""
POISON = [251, 252, 253]
"""Token ids that no other prompt has."""
DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]


def break_at(monkeypatch: pytest.MonkeyPatch, how: str, when: str, done: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("PAGEWIRE_TEST_BREAK", f"{how}:{when}:{done}")


def health(cluster: Cluster, name: str = "ready") -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{cluster.url}/health/{name}", timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


async def becomes_ready(cluster: Cluster) -> None:
    async with asyncio.timeout(PATIENCE):
        while not cluster.state().ready:
            await asyncio.sleep(0.05)


def options(place: int, temperature: float | None = None) -> dict[str, Any]:
    """Every other one greedy, the rest drawn at random, or all at a `temperature`; each from a seed of its own."""
    return {"max_tokens": TOKENS, "logprobs": None, "temperature": temperature or 0.9 * (place % 2), "seed": place}


async def ask(cluster: Cluster, prompts: list[list[int]] = PROMPTS, temperature: float | None = None) -> list[str]:
    """Texts of all prompts at once, past every end token."""
    async with open_session(cluster, PATIENCE) as session:
        answers = await asyncio.gather(*(complete(session, cluster, prompt, **options(place, temperature)) for place, prompt in enumerate(prompts)))
    return [answer.choices[0].text for answer in answers]


async def ask_streams(
    cluster: Cluster, begun: Callable[[], Awaitable[None]], prompts: list[list[int]] = PROMPTS, temperature: float | None = None
) -> list[str]:
    """The same from streams; `begun` is called when all of them have said something."""
    texts = [""] * len(prompts)
    pending = set(range(len(prompts)))
    all_begun = asyncio.Event()

    async def read(place: int) -> None:
        async for event in events(session, cluster, prompts[place], **options(place, temperature)):
            for choice in event["choices"]:
                texts[place] += choice["text"]
                pending.discard(place)
            if not pending:
                all_begun.set()

    async with open_session(cluster, PATIENCE) as session:
        readers = [asyncio.create_task(read(place)) for place in range(len(prompts))]
        await all_begun.wait()
        await begun()
        await asyncio.gather(*readers)
    return texts


@pytest.fixture(scope="module")
def hung(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, list[str]]]:
    """A cluster whose worker has hung in a step, and what it answered all the same."""
    with pytest.MonkeyPatch.context() as patch:
        break_at(patch, "sleep", "4", tmp_path_factory.mktemp("hung") / "done")
        sizes = ["--threads", "1", "--max-context", "2048", "--hang-timeout", "3", "--deterministic"]
        with running_cluster(models / "rand-byte", *sizes, script=SCRIPT) as cluster:
            yield cluster, asyncio.run(ask(cluster))


def test_a_worker_that_hangs_in_a_step_is_killed_and_nothing_is_lost(hung: tuple[Cluster, list[str]]) -> None:
    cluster, interrupted = hung
    log = cluster.log()
    assert "worker0 hangs: no result for 3 s of a step with " in log
    assert "worker0 died (killed by SIGKILL); starting it again" in log
    assert next(process.restarts for process in cluster.state().processes if process.name == "worker0") >= 1
    assert asyncio.run(ask(cluster)) == interrupted


def test_a_killed_worker_is_a_pause_and_requests_that_come_meanwhile_wait(hung: tuple[Cluster, list[str]]) -> None:
    cluster, undisturbed = hung
    seen: list[dict[str, Any]] = []
    late: list[list[str]] = []
    gaps: list[float] = []

    async def kill() -> None:
        for _ in range(3):  # it may have come back before health was asked again
            gaps.clear()
            cluster.kill("worker0")
            with contextlib.suppress(TimeoutError):
                await until(lambda: bool(seen), 20)
                break
            assert max(gaps, default=PATIENCE) > AWAY_SECONDS, "health has not told of it"
        late.append(await ask(cluster))
        await becomes_ready(cluster)

    async def watch() -> None:
        last = time.monotonic()
        while not late:
            status, body = await asyncio.to_thread(health, cluster)
            now = time.monotonic()
            gaps.append(now - last)
            last = now
            if status == 503:
                seen.append(body)
            await asyncio.sleep(0.05)

    async def both() -> list[str]:
        watching = asyncio.create_task(watch())
        texts = await ask_streams(cluster, kill)
        await watching
        return texts

    assert asyncio.run(both()) == undisturbed
    assert late == [undisturbed]
    assert all(body["accepting"] for body in seen)
    assert any("worker0" in body["reason"] for body in seen)
    assert health(cluster, "startup")[0] == health(cluster, "live")[0] == 200


def test_the_bits_of_drawn_texts_survive_a_killed_worker(hung: tuple[Cluster, list[str]]) -> None:
    """`--deterministic`: what was decoded is prefilled again, in another batch, and the same tokens are drawn from all of the vocabulary."""
    cluster, _ = hung
    prompts = [[(31 * position + 7 * row) % 250 for position in range(5 + 17 * row % 120)] for row in range(16)]

    async def kill() -> None:
        cluster.kill("worker0")

    async def disturbed_and_not() -> tuple[list[str], list[str]]:
        disturbed = await ask_streams(cluster, kill, prompts, 1.0)
        await becomes_ready(cluster)
        return disturbed, await ask(cluster, prompts, 1.0)

    disturbed, undisturbed = asyncio.run(disturbed_and_not())
    assert disturbed == undisturbed
    assert len(set(disturbed)) == len(prompts)


async def poisoned(cluster: Cluster, prompts: list[list[int]]) -> tuple[list[str], int, dict[str, Any]]:
    """What the others say, and status and answer of one request with poison in the middle of its prompt."""
    async with open_session(cluster, PATIENCE) as session:
        others = asyncio.create_task(ask(cluster, prompts))
        body = body_of(cluster, [*PROMPTS[0], *POISON, *PROMPTS[1]], {"max_tokens": TOKENS, "logprobs": None})
        async with session.post("/v1/completions", json=body) as response:
            answer = await response.json()
        return await others, response.status, answer


def replay(script: Path, root: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(script), "replay", *arguments]
    return subprocess.run(command, cwd=root, env=environment(root), capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("device", DEVICES)
def test_a_request_that_kills_the_worker_fails_alone_and_can_be_replayed(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:  # fmt: skip
    deaths = tmp_path / "deaths"
    break_at(monkeypatch, "kill", ",".join(map(str, POISON)), deaths)
    prompts = [[row, *PROMPTS[row % len(PROMPTS)]] for row in range(63)]
    with running_cluster(models / "rand-byte", *CLUSTERS[device], "--threads", "1", "--max-context", "2048", script=SCRIPT) as cluster:
        undisturbed = asyncio.run(ask(cluster, prompts))
        assert not deaths.exists()
        texts, status, answer = asyncio.run(poisoned(cluster, prompts))
        assert texts == undisturbed
        assert (status, answer["error"]["code"]) == (500, "poison_request")
        assert len(deaths.read_text().splitlines()) <= 2 + 6 + 2
        [plan] = cluster.run_dir.glob("poison-*.plan")
        assert plan.stat().st_mode & 0o777 == 0o600
        asyncio.run(becomes_ready(cluster))  # the culprit was failed as soon as the next worker had said that it lives
        crash = replay(SCRIPT, tmp_path, str(plan), "--threads", "1")
        assert crash.returncode == 1, crash.stderr
        assert "worker0 ended (killed by SIGSEGV)" in crash.stdout.splitlines()[-1]
        for other in {"cpu", device}:
            sound = replay(ROOT / "launch.py", tmp_path, str(plan), "--device", other, "--threads", "1")
            assert sound.returncode == 0, sound.stdout + sound.stderr
            assert sound.stdout.endswith("all steps could be run\n")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_request_that_stops_the_worker_fails_alone(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stops = tmp_path / "stops"
    break_at(monkeypatch, "stop", ",".join(map(str, POISON)), stops)
    with running_cluster(models / "rand-byte", "--threads", "1", "--max-context", "2048", "--hang-timeout", "3", script=SCRIPT) as cluster:
        undisturbed = asyncio.run(ask(cluster))
        texts, status, answer = asyncio.run(poisoned(cluster, PROMPTS))
        assert texts == undisturbed
        assert (status, answer["error"]["code"]) == (500, "poison_request")
        assert len(stops.read_text().splitlines()) <= 2 + 3 + 2
        [plan] = cluster.run_dir.glob("poison-*.plan")
        again = replay(SCRIPT, tmp_path, str(plan), "--timeout", "2", "--threads", "1")
        assert again.returncode == 1
        assert again.stdout.splitlines()[-1].endswith(": no result for 2 s")
