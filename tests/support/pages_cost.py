"""`python -m tests.support.pages_cost`: tokens a second of a busy cluster with live pages open in a real browser and with none, in pairs.

The browser is given only the processor time that nobody else wants (SCHED_IDLE), as it is on another machine where people really look.
Prints a line for each pair, and one JSON object: medians, and of the ratios the median with an interval of 95 % (bootstrapped). For Linux.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Sequence

import aiohttp

from launcher.machine import commit, machine
from tests.support.browser import Watched, browser
from tests.support.cluster import Cluster, running_cluster
from transport.vitals import processor_seconds

WARM_UP_SECONDS = 15.0
SETTLE_SECONDS = 2.0
RESAMPLED = 10_000


class Streams:
    """A thread with so many streams, each of which begins a new one when it ends, until closed."""

    def __init__(self, cluster: Cluster, count: int, tokens: int) -> None:
        self._cluster, self._count, self._tokens = cluster, count, tokens
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()

    async def _main(self) -> None:
        async with aiohttp.ClientSession(self._cluster.url, timeout=aiohttp.ClientTimeout(total=None)) as session, asyncio.TaskGroup() as group:
            for number in range(self._count):
                group.create_task(self._stream(session, random.Random(number)))

    async def _stream(self, session: aiohttp.ClientSession, chance: random.Random) -> None:
        most = chance.randint(1, self._tokens)  # the first are of any length, so that they do not all end together
        while not self._stop.is_set():
            body = {"prompt": f"Tell of {chance.random()}", "max_tokens": most, "ignore_eos": True, "stream": True, "temperature": 1.0}
            async with session.post("/v1/completions", json=body) as answer:
                answer.raise_for_status()
                async for _ in answer.content:
                    if self._stop.is_set():
                        return
            most = self._tokens

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)


def counted(cluster: Cluster) -> tuple[float, float, float]:
    """The scheduler's seconds and tokens, and the processor seconds of all processes of the cluster."""
    state = cluster.state()
    scheduler = next(process for process in state.processes if process.name == "scheduler")
    used = sum(processor_seconds(process.pid) or 0.0 for process in state.processes)
    return scheduler.counters["seconds"], scheduler.counters["generation_tokens"], used


def measure(cluster: Cluster, seconds: float) -> tuple[float, float]:
    """Tokens a second, and the share of a core that the cluster took."""
    time.sleep(SETTLE_SECONDS)
    begun, before = time.monotonic(), counted(cluster)
    time.sleep(seconds)
    after, took = counted(cluster), time.monotonic() - begun
    return round((after[1] - before[1]) / (after[0] - before[0]), 1), round((after[2] - before[2]) / took, 4)


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Between which the median lies with 95 %, were the pairs drawn again."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(RESAMPLED))
    return medians[RESAMPLED // 40], medians[-RESAMPLED // 40]


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.support.pages_cost")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--pages", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--streams", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=300, help="of each answer")
    args = parser.parse_args()
    ratios: list[float] = []
    found: dict[int, list[tuple[float, float]]] = {0: [], args.pages: []}
    with running_cluster(args.model, "--max-context", "1024", "--max-slots", str(args.streams)) as cluster:
        streams = Streams(cluster, args.streams, args.tokens)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))  # of this thread, and of the browser that it starts
        with browser() as opened:
            time.sleep(WARM_UP_SECONDS)
            for pair in range(args.pairs):
                rates = {}
                for pages in (0, args.pages) if pair % 2 else (args.pages, 0):
                    context = opened.new_context(viewport={"width": 1440, "height": 900})
                    watched = [Watched(context.new_page(), cluster.url) for _ in range(pages)]
                    for one in watched:
                        one.page.goto(cluster.url, wait_until="domcontentloaded")
                    rates[pages] = measure(cluster, args.seconds)
                    found[pages].append(rates[pages])
                    troubles = [trouble for one in watched for trouble in one.troubles]
                    assert not troubles, troubles
                    context.close()
                ratios.append(rates[args.pages][0] / rates[0][0])
                print(f"pair {pair + 1}: {rates[0][0]:.1f} tokens/s without, {rates[args.pages][0]:.1f} with: {ratios[-1]:.4f}", flush=True)
        streams.close()
    told = {f"{pages}_pages": {"tok_s": [rate for rate, _ in rows], "cores": [cores for _, cores in rows]} for pages, rows in found.items()}
    answer = {"ratio": statistics.median(ratios), "interval": interval(ratios), **told, "machine": machine(), "commit": commit(), "command": sys.argv}
    print(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
