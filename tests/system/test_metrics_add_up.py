"""Case C58: whatever becomes of requests, the metrics add up, at every moment and whichever of two frontends is asked; and so does the access log."""

import asyncio
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from messages.cluster import INTAKE, READY, SAMPLE, ProcessState
from tests.support.asking import strict
from tests.support.cluster import Cluster, running_cluster
from tests.support.figures import caught, idle_figures
from tests.support.scraping import GENERATING, Scrape, Watch

SLOTS, QUEUE, CONTEXT = 4, 40, 1024
ENDLESS = 900
DOWN_SECONDS = 60.0
TRIES = 5
DOCS = Path(__file__).resolve().parents[2] / "docs"
OPTIONS = ["--kv-tokens", str(CONTEXT), "--max-context", str(CONTEXT), "--max-slots", str(SLOTS), "--max-queue", str(QUEUE), "--threads", "1"]
PATIENT = "--hang-timeout", "0"
"""A worker that is stopped goes on when the test says so, and is not started again."""


@pytest.fixture(scope="module")
def logged(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Path]]:
    log = tmp_path_factory.mktemp("access") / "log"
    files = "--access-log", str(log), "--journal", f"{log}.journal"
    with running_cluster(models / "dice-byte", "--frontends", "2", *files, *OPTIONS, *PATIENT) as cluster:
        yield cluster, log


@dataclass
class Client:
    """Asks, each time over a new connection, and keeps what it was told. `told`: usage of all whole answers; `statuses` of all answers."""

    cluster: Cluster
    told: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    closed: int = 0

    async def ask(self, path: str = "/v1/completions", begun: asyncio.Semaphore | None = None, **body: Any) -> None:
        """`begun` is released when the first of the answer is there."""
        body = {"model": self.cluster.model, "prompt": "A", "ignore_eos": True} | body
        if path != "/v1/completions":
            body = {name: value for name, value in body.items() if name not in ("prompt", "ignore_eos")}
        if body.get("stream"):
            body["stream_options"] = {"include_usage": True}
        async with aiohttp.ClientSession(self.cluster.url) as session, session.post(path, json=body) as response:
            first = await response.content.readany()
            if begun is not None:
                begun.release()
            text = (first + await response.content.read()).decode()
        self.statuses[response.status] += 1
        if response.status == 200:
            events = [strict(line[6:]) for line in text.splitlines() if line.startswith("data: {")] if body.get("stream") else [strict(text)]
            self.told.update({name: count for name, count in events[-1]["usage"].items() if isinstance(count, int)})
            self.told["cached"] += (events[-1]["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            reasons = [choice.get("finish_reason") for event in events for choice in event.get("choices", event.get("data", ()))]
            self.ends.update(reason or "length" for reason in reasons if reason or path == "/v1/embeddings")

    async def respond(self, **body: Any) -> None:
        """The same of /v1/responses, whole."""
        async with aiohttp.ClientSession(self.cluster.url) as session, session.post("/v1/responses", json={"input": "A"} | body) as response:
            answer = strict(await response.text())
        self.statuses[response.status] += 1
        usage = answer["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        self.told.update(prompt_tokens=usage["input_tokens"], completion_tokens=usage["output_tokens"], cached=cached)
        self.ends[{"completed": "stop", "incomplete": "length"}[answer["status"]]] += 1

    async def leave(self, when: Callable[[], Any], **body: Any) -> None:
        """Begin a stream that would take long, and close the connection when `when`, a coroutine, returns; with none, after some text."""
        body = {"model": self.cluster.model, "prompt": "A", "ignore_eos": True, "max_tokens": ENDLESS, "stream": True} | body
        async with aiohttp.ClientSession(self.cluster.url) as session, session.post("/v1/completions", json=body) as response:
            assert response.status == 200
            if when is nothing:
                for _ in range(3):
                    await response.content.readuntil(b"\n\n")
            await when()
        self.closed += 1


async def nothing() -> None:
    """See Client.leave."""


async def until(true: Callable[[Scrape], bool], watch: Watch) -> Scrape:
    async with asyncio.timeout(DOWN_SECONDS):
        while not true(found := await watch.scrape()):
            await asyncio.sleep(0.05)
    return found


def at_rest(found: Scrape) -> bool:
    names = ("num_requests_running", "num_requests_waiting", "sequences_live", "requests_live", "frontend_live_sequences")
    told = found.sum("request_success_total", finished_reason="stop") == found.scheduler("finished_stop")
    return told and not any(found.sum(name) for name in names) and found.scheduler("accepted") == found.sum("sequences_started_total")


def lines_of(log: Path) -> list[dict[str, Any]]:
    whole, _, _ = log.read_text().rpartition("\n")  # a line may be just being written
    return [line for line in map(json.loads, whole.splitlines()) if line["path"] in GENERATING]


async def all_lines(log: Path, count: int) -> list[dict[str, Any]]:
    async with asyncio.timeout(DOWN_SECONDS):
        while len(found := lines_of(log)) < count:
            await asyncio.sleep(0.05)
    return found


async def mix(client: Client, watch: Watch) -> None:
    """All the ways a request may end that need no broken process."""
    stopping: dict[str, Any] = {"allowed_token_ids": [66], "stop_token_ids": [66]}
    await asyncio.gather(
        *(client.ask(max_tokens=5, stream=bool(number % 2), **stopping) for number in range(10)),
        *(client.ask(max_tokens=3 + number, stream=bool(number % 2)) for number in range(5)),
    )
    await asyncio.gather(*(client.leave(nothing) for _ in range(5)))
    await asyncio.gather(client.ask(n=3, max_tokens=4), client.ask(n=3, max_tokens=4, stream=True, prompt=["AB", "A"]))
    await client.ask(echo=True, max_tokens=0, logprobs=1, prompt="ABCD")
    await client.ask(echo=True, max_tokens=2, prompt="ABCD")
    for _ in range(2):
        await client.ask(prompt="AB" * 30, max_tokens=1)
    await client.ask("/v1/embeddings", input=["ABC", "A"])
    await client.respond(max_output_tokens=6, ignore_eos=True)
    wrong: list[dict[str, Any]] = [{"max_tokens": -1}, {"prompt": "A" * 2000}, {"nonsense": 1}, {"prompt": []}]
    for each in wrong:
        await client.ask(**each)
    assert client.statuses[400] == 4
    await full_queue(client, watch)


async def full_queue(client: Client, watch: Watch) -> None:
    """Slots are taken; what waits is closed, and what does not find a place in the line is refused by the scheduler."""
    queued = asyncio.Event()
    waiting = [asyncio.create_task(client.leave(queued.wait)) for _ in range(SLOTS + 3)]
    await until(lambda found: found.sum("num_requests_waiting") >= 3, watch)
    await client.ask(n=QUEUE, max_tokens=1)
    assert client.statuses[429] == 1
    queued.set()
    await asyncio.gather(*waiting)


@pytest.mark.timeout(240)
async def test_c58_metrics_add_up(logged: tuple[Cluster, Path]) -> None:
    """Stopped, cut at a length, closed in the middle and in the queue, refused early and late, choices, echo, embeddings; preemptions; a worker
    that dies. Then each number is compared with what clients were told, with the scheduler's, and with the lines of the access log."""
    cluster, log = logged
    client = Client(cluster)
    async with aiohttp.ClientSession(cluster.url) as session, aiohttp.ClientSession(cluster.url) as watching:
        watch, background = Watch(session), Watch(watching)
        scraping = asyncio.create_task(background.run())
        await mix(client, watch)
        await preempted(client)
        await worker_dies(client)
        found = await until(at_rest, watch)
        lines = await all_lines(log, int(found.sum("requests_received_total")))
        background.stop()
        await scraping
    assert background.scrapes > 10
    check_against_clients(found, client)
    check_against_scheduler(found)
    check_against_lines(found, lines, client)
    for _ in range(8):  # whichever frontend answers
        async with aiohttp.ClientSession(cluster.url) as session:
            await until(lambda again: all(again.sum(name) == found.sum(name) for name in SUMS), Watch(session))


async def worker_dies(client: Client) -> None:
    """While two streams run."""
    for _ in range(TRIES):
        begun = asyncio.Semaphore(0)
        running = [asyncio.create_task(client.ask(max_tokens=400, stream=True, begun=begun)) for _ in range(2)]
        for _ in running:
            await begun.acquire()
        if there := await caught(client.cluster, 2):
            client.cluster.kill("worker0")
        await asyncio.gather(*running)
        if there:
            return
    raise AssertionError("both have never run at once")


SUMS = (
    "requests_received_total", "sequences_started_total", "request_success_total", "prompt_tokens_total", "generation_tokens_total",
    "time_to_first_token_seconds_count", "inter_token_latency_seconds_count", "request_queue_time_seconds_sum", "requests_refused_total",
)  # fmt: skip


async def preempted(client: Client) -> None:
    """Rows that do not fit together: one of them runs again from its tokens. Admission learns from it, so it may take another round."""
    before = (await idle_figures(client.cluster)).counters["preemptions"]
    for number in range(6):
        rows = [client.ask(prompt=f"{number}{row}" * 20, max_tokens=350) for row in range(3)]
        await asyncio.gather(*rows)
        if (await idle_figures(client.cluster)).counters["preemptions"] > before:
            return
    raise AssertionError("nothing was preempted")


def check_against_clients(found: Scrape, client: Client) -> None:
    answered = sum(client.statuses.values())
    assert found.sum("requests_received_total") == answered + client.closed == found.generating()
    assert {int(status): found.sum("requests_refused_total", status=status) for status in ("400", "429")} == {400: 4, 429: 1}
    assert found.sum("requests_refused_total") == 5
    assert found.generating(status="499") == client.closed
    reasons = {reason: found.sum("request_success_total", finished_reason=reason) for reason in ("stop", "length", "abort", "error")}
    assert reasons == {"stop": client.ends["stop"], "length": client.ends["length"], "abort": client.closed, "error": 0}
    assert found.sum("prompt_tokens_total") == client.told["prompt_tokens"] + 2 * client.closed  # a prompt of BOS and one letter each
    assert found.sum("prompt_tokens_cached_total") == client.told["cached"] > 0
    assert found.sum("request_prefill_kv_computed_tokens_sum") == client.told["prompt_tokens"] - client.told["cached"]
    assert found.sum("request_params_n_count") == client.statuses[200] + client.closed


def check_against_scheduler(found: Scrape) -> None:
    assert found.sum("sequences_started_total") == found.scheduler("accepted")
    for reason, counter in (("stop", "finished_stop"), ("length", "finished_length"), ("abort", "cancelled"), ("error", "errors")):
        assert found.sum("request_success_total", finished_reason=reason) == found.scheduler(counter)
    assert found.sum("prompt_tokens_total") == found.scheduler("prompt_tokens")
    assert found.sum("generation_tokens_total") <= found.scheduler("generation_tokens")
    assert found.sum("kv_cache_usage_perc") == 0


def check_against_lines(found: Scrape, lines: list[dict[str, Any]], client: Client) -> None:
    assert len(lines) == found.sum("requests_received_total")
    assert Counter(line["status"] for line in lines) == client.statuses + Counter({499: client.closed})
    assert sum(line["prompt_tokens"] or 0 for line in lines) == found.sum("prompt_tokens_total")
    assert sum(line["completion_tokens"] or 0 for line in lines) == found.sum("generation_tokens_total")
    aborted = sum(line["completion_tokens"] or 0 for line in lines if line["status"] == 499)
    assert found.sum("generation_tokens_total") == client.told["completion_tokens"] + aborted
    assert sum(line["choices"] for line in lines if line["finish"]) == found.sum("sequences_started_total")
    assert found.sum("time_to_first_token_seconds_count") >= sum(line["ttft_seconds"] is not None for line in lines)
    assert all(line["queue_seconds"] is not None for line in lines if line["status"] == 200)


@pytest.mark.slow
async def test_c58_nothing_falls_when_a_frontend_dies(logged: tuple[Cluster, Path]) -> None:
    """What it counted stays in the sums of both, and what it was doing is lost, not forgotten. The worker sleeps meanwhile, so that nothing ends."""
    cluster, _ = logged
    client, frontend = Client(cluster), cluster.pid_of("frontend1")
    async with aiohttp.ClientSession(cluster.url) as session:
        watch = Watch(session)
        before = await watch.scrape()
        begun = asyncio.Semaphore(0)
        streams = [asyncio.create_task(client.ask(max_tokens=ENDLESS, stream=True, begun=begun)) for _ in range(SLOTS)]
        for _ in streams:
            await begun.acquire()
        cluster.kill("worker0", signal.SIGSTOP)
        async with asyncio.timeout(DOWN_SECONDS):
            while told_live(cluster) != sum(not each.done() for each in streams):
                await asyncio.sleep(0.05)
        running = [each for each in streams if not each.done()]
    os.kill(frontend, signal.SIGKILL)
    await comes_back(cluster, "frontend1", frontend)
    started = before.sum("sequences_started_total") + SLOTS
    broken = [each for each in running if each.done() and isinstance(each.exception(), aiohttp.ClientError)]
    for each in running:
        each.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    for _ in range(8):
        async with aiohttp.ClientSession(cluster.url) as session:
            found = await until(lambda found: not found.sum("sequences_live") and found.sum("sequences_started_total") == started, Watch(session))
        found.check_risen(before)
        assert found.sum("sequences_lost_total") == len(broken)
    cluster.kill("worker0", signal.SIGCONT)


def told_live(cluster: Cluster) -> float:
    """Sequences that live by what the frontends have told the supervisor."""
    told = [gauge for process in cluster.state().processes for gauge in process.gauges.items()]
    return sum(value for name, value in told if name.startswith(f'{SAMPLE}["pagewire_sequences_live"'))


async def comes_back(cluster: Cluster, name: str, pid: int) -> None:
    """As another process, which has heard of the cluster."""

    def back(process: ProcessState) -> bool:
        return process.name == name and process.pid not in (0, pid) and process.phase == READY and process.gauges.get(INTAKE, -1.0) >= 0

    async with asyncio.timeout(DOWN_SECONDS):
        while not any(map(back, cluster.state().processes)):
            await asyncio.sleep(0.05)


async def exposed(cluster: Cluster) -> Scrape:
    """After a refused request, so that each counter has a sample."""
    await Client(cluster).ask(max_tokens=-1)
    async with aiohttp.ClientSession(cluster.url) as session:
        return await until(lambda found: bool(found.sum("requests_refused_total")), Watch(session))


async def test_every_metric_is_documented_and_every_documented_one_is_there(logged: tuple[Cluster, Path]) -> None:
    found = await exposed(logged[0])
    told = {name + ("_total" if kind == "counter" else "") for name, kind in found.types.items()}
    assert set(re.findall(r"`(pagewire_\w+)", (DOCS / "metrics.md").read_text())) == told


async def test_the_dashboard_asks_for_what_is_there_and_its_panels_lie_side_by_side(logged: tuple[Cluster, Path]) -> None:
    found = await exposed(logged[0])
    board = json.loads((DOCS / "grafana.json").read_text())
    variables = {variable["name"]: variable for variable in board["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    places: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        for cell in ((x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])):
            assert places.setdefault(cell, panel["title"]) == panel["title"]
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            check_queries([target["expr"] for target in panel["targets"]], found)
    rows = max(y for _, y in places) + 1
    assert sorted(places) == [(x, y) for x in range(24) for y in range(rows)], "the panels do not fill their rows"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def check_queries(queries: list[str], found: Scrape) -> None:
    assert queries
    for query in queries:
        names = set(re.findall(r"pagewire_\w+", query))
        assert names, query
        assert names <= found.samples.keys(), query
        labels = {label for name in names for known, _ in found.samples[name] for label in known} | {"instance"}
        asked = {label.strip() for labels_ in re.findall(r"by \(([^)]*)\)", query) for label in labels_.split(",")}
        assert asked | set(re.findall(r"[{,](\w+)=", query)) <= labels, query
