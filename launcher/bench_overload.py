"""`bench overload`: requests at random times and at multiples of what the server can do, and what of them is served in time."""

import argparse
import asyncio
import json
import shlex
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from launcher.bench import COUNT, POSITIVE, STREAMS, WARM_UP_TOKENS, add_place, check_trace, prepare, start_arguments, watcher
from launcher.errors import LauncherError
from launcher.options import number, whole
from launcher.progress import StatusLine
from launcher.rundir import choose_cluster

if TYPE_CHECKING:
    import aiohttp

    from launcher.bench_served import Served
    from launcher.load import Outcome, Target

LOADS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
WARM_UP = 0.25
"""Share of each load's time that is not counted: the line fills and empties again at first."""
AGAIN_SECONDS = 0.1
WATCH_SECONDS = 0.1
SHAPE = "qwen3-0.6b"
"""Its vocabulary alone matters to a worker without a model."""
PREEMPTIONS = "pagewire_num_preemptions_total"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench overload`."""
    add_place(parser)
    load = parser.add_argument_group("load")
    text = "multiples of the capacity (0.25 to 4)"
    load.add_argument("--loads", type=_loads, default=list(LOADS), metavar="X,X", help=text)
    load.add_argument("--streams", type=STREAMS, default=32, metavar="N", help="closed loop that measures the capacity: so many at once (32)")
    load.add_argument("--capacity", type=POSITIVE, metavar="R", help="requests a second that are the capacity, instead of measuring it")
    load.add_argument("--seconds", type=number(1, 3600), default=30.0, metavar="S", help=f"of each load; the first {WARM_UP:.0%}% do not count (30)")
    load.add_argument("--ttft", type=POSITIVE, default=2.0, metavar="S", help="goodput counts requests whose first token came within so long (2)")
    load.add_argument("--prompt-tokens", type=COUNT, default=64, metavar="N", help="tokens per prompt (64)")
    load.add_argument("--max-tokens", type=COUNT, default=32, metavar="N", help="tokens generated per request (32)")
    load.add_argument("--seed", type=whole(0, 2**31 - 1), default=0, help="of the prompts and the arrival times (0)")
    load.add_argument("--timeout", type=POSITIVE, default=600.0, metavar="S", help="seconds one request may take (600)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    paced = parser.add_argument_group("a private cluster without a model, whose speed does not depend on what else this machine does")
    paced.add_argument("--paced", type=number(0.1, 1e4), metavar="MS", help="a worker that makes tokens up, with steps of MS milliseconds")
    paced.add_argument("--slots", type=whole(1, 4096), default=16, metavar="N", help="sequences computed at once by it (16)")
    paced.add_argument("--queue-seconds", type=number(0, 86400), default=0.0, metavar="S", help="its --max-queue-seconds (0)")


def _loads(text: str) -> list[float]:
    return [number(0.01, 100)(part) for part in text.split(",")]


def run(args: argparse.Namespace) -> int:
    """Measure and print; 0 when no request failed but by being refused or late, else 1. Raises LauncherError."""
    from launcher.cold import ColdCluster
    from launcher.machine import commit, machine
    from launcher.overload_figures import table

    if args.start + (args.paced is not None) + bool(args.url or args.port) > 1:
        raise LauncherError("--start and --paced make a cluster of their own: leave --url and --port, and one of them, out", 2)
    check_trace(args)
    report: dict[str, Any] = {"machine": machine(), "commit": commit(), "command": shlex.join(sys.argv), "start_args": args.start_args}
    if args.paced is not None:
        report |= _measure_paced(args)
    elif args.start:
        with ColdCluster(start_arguments(args)) as cluster:
            url = cluster.url
            cluster.measure()
            report |= asyncio.run(_measure(args, url, None))
    else:
        url = args.url.rstrip("/") if args.url else choose_cluster(args.port).info.url
        report |= asyncio.run(_measure(args, url, args.model))
    if args.json:
        print(json.dumps(report))
    else:
        found, capacity = report["machine"], report["capacity"]
        print(f"{report['model']} on {found['cpu']}, {found['cores']} cores; {args.prompt_tokens} prompt + {args.max_tokens} new tokens")
        print(f"capacity {capacity['requests_s']:.2f} requests/s, {capacity['tok_s']:.1f} tok/s; times in ms")
        print(f"goodput: tokens a second of requests whose first token came within {args.ttft:g} s")
        print(table(report["runs"], capacity["tok_s"]))
    return 0 if not any(result["failed"] for result in report["runs"]) else 1


def _measure_paced(args: argparse.Namespace) -> dict[str, Any]:
    """Frontend, tokenizer and scheduler are the real ones."""
    from launcher.bench_frontend import settle
    from launcher.bench_model import add_engine, read_shape
    from launcher.bench_served import Served

    parser = argparse.ArgumentParser()
    add_engine(parser.add_argument)
    engine = parser.parse_args(["--model-shape", SHAPE, "--dummy-weights", "--device", "cpu", "--max-slots", str(args.slots)])
    engine.model, engine.frontends, engine.tokenizers, engine.paced = "", 1, 1, args.paced
    stand = Served(engine, read_shape(engine).vocab, None)
    stand.scheduler_arguments |= {"max_queue_seconds": args.queue_seconds}
    with stand as served:
        settle(served, served.fronts)
        return asyncio.run(_watched(args, served))


async def _watched(args: argparse.Namespace, served: "Served") -> dict[str, Any]:
    """Measure, and be the supervisor meanwhile."""

    async def watch() -> None:
        while True:
            served.watch(0)
            await asyncio.sleep(WATCH_SECONDS)

    watching = asyncio.create_task(watch())
    try:
        return await _measure(args, f"http://{served.address[0]}:{served.address[1]}", None)
    finally:
        watching.cancel()


async def _measure(args: argparse.Namespace, url: str, model: str | None) -> dict[str, Any]:
    from launcher import load

    name, ids = await prepare(url, model)
    target = load.Target(url=url, model=name, max_tokens=args.max_tokens, timeout=args.timeout)
    warm = load.Target(url=url, model=name, max_tokens=WARM_UP_TOKENS, timeout=args.timeout)
    line = StatusLine()
    async with load.new_session() as session:
        outcome = await load.send(session, warm, load.make_prompts(ids, 1, 8, args.seed - 1)[0], 0.0)
        if outcome.error is not None:
            raise LauncherError(f"the warm-up request to {url} failed: {outcome.error}")
        capacity = await _capacity(args, target, ids, session, line)
        runs = [await _load(args, target, ids, session, line, share, capacity["requests_s"]) for share in args.loads]
    line.clear()
    asked = {asked: getattr(args, asked) for asked in ("prompt_tokens", "max_tokens", "seed", "seconds", "ttft")}
    return {"url": url, "model": name, **asked, "capacity": capacity, "runs": runs}


async def _capacity(
    args: argparse.Namespace, target: "Target", ids: Sequence[int], session: "aiohttp.ClientSession", line: StatusLine
) -> dict[str, float]:
    """Requests and tokens a second when there is always one more; who is refused asks again."""
    from launcher import load
    from launcher.overload_figures import REFUSED

    if args.capacity is not None:
        return {"requests_s": args.capacity, "tok_s": args.capacity * args.max_tokens}
    line.show("capacity")
    began, outcomes = time.perf_counter(), list["Outcome"]()

    async def stream(number: int) -> None:
        sent = 0
        while time.perf_counter() < began + args.seconds:
            prompt = load.make_prompts(ids, 1, args.prompt_tokens, hash((args.seed, number, sent)))[0]
            sent += 1
            outcomes.append(await load.send(session, target, prompt, time.perf_counter()))
            if outcomes[-1].error == REFUSED:
                await asyncio.sleep(AGAIN_SECONDS)
            elif outcomes[-1].error is not None:
                raise LauncherError(f"a request failed while the capacity was measured: {outcomes[-1].error}")

    try:
        async with asyncio.TaskGroup() as group:
            for number in range(args.streams):
                group.create_task(stream(number))
    except* LauncherError as errors:
        raise errors.exceptions[0] from None
    begin, end = began + WARM_UP * args.seconds, began + args.seconds
    ended = sum(outcome.error is None and begin <= outcome.ended < end for outcome in outcomes)
    if not ended:
        raise LauncherError(f"no request ended within {args.seconds:g} s: ask for fewer tokens, or more --seconds", 2)
    return {"requests_s": round(ended / (end - begin), 3), "tok_s": round(ended * args.max_tokens / (end - begin), 1)}


async def _load(
    args: argparse.Namespace, target: "Target", ids: Sequence[int], session: "aiohttp.ClientSession", line: StatusLine, share: float, capacity: float
) -> dict[str, Any]:
    """Poisson arrivals for args.seconds at `share` of the `capacity` (requests a second)."""
    from launcher import load
    from launcher.overload_figures import rates

    rate = share * capacity
    times = [at for at in load.arrival_times(rate, 2 + int(2 * rate * args.seconds), args.seed) if at < args.seconds]
    prompts = load.make_prompts(ids, len(times), args.prompt_tokens, args.seed + 1 + round(1000 * share))
    watch, before = watcher(line, f"{share:g} x {capacity:.3g} requests/s", len(times)), await _preemptions(session, target.url)
    began, outcomes = time.perf_counter(), list["Outcome"]()

    async def one(prompt: list[int], due: float) -> None:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        outcomes.append(await load.send(session, target, prompt, due))
        watch(outcomes[-1])

    async with asyncio.TaskGroup() as group:
        for prompt, at in zip(prompts, times, strict=True):
            group.create_task(one(prompt, began + at))
    found = rates(outcomes, began + WARM_UP * args.seconds, began + args.seconds, args.ttft)
    return {"load": share, **found, "preemptions": await _preemptions(session, target.url) - before}


async def _preemptions(session: "aiohttp.ClientSession", url: str) -> float:
    """So far; 0 of a server that does not say."""
    async with session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines() if response.status == 200 else []
    return sum(float(text.rsplit(" ", 1)[1]) for text in lines if text.startswith(PREEMPTIONS))
