"""`bench serve`: the load generator against a running cluster or one of its own, and what it measured."""

import argparse
import json
import shlex
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from launcher.errors import LauncherError
from launcher.new_file import new_file
from launcher.options import number, whole
from launcher.progress import StatusLine
from launcher.rundir import choose_cluster

if TYPE_CHECKING:
    from launcher.load import Measurement, Outcome, Target

SEED_TEXT = (
    "The river rises in the hills above the town, turns twice around the old mill and runs past orchards, railway sheds and a small harbour "
    "before it meets the sea. In 1873 an engineer measured 42 bridges over it; today 17 remain, and every spring somebody counts them again. "
)
WARM_UP_TOKENS = 8
COUNT = whole(1, 1_000_000)
STREAMS = whole(1, 65_536)
KILLS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "segv": signal.SIGSEGV}
"""How `--kill-worker` may do it."""
POSITIVE = number(1e-6, 1e6)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench serve`."""
    add_place(parser)
    load = parser.add_argument_group("load")
    load.add_argument("--streams", "--concurrency", type=_counts, default=[1, 8], metavar="N,N", help="closed loop: so many at once (default 1,8)")
    load.add_argument("--rate", type=POSITIVE, metavar="R", help="open loop instead: Poisson arrivals, R requests a second")
    load.add_argument("--requests", type=COUNT, metavar="N", help="requests per run (default: 2 per stream and at least 3; 32 with --rate)")
    load.add_argument("--prompt-tokens", type=COUNT, default=128, metavar="N", help="tokens per prompt (default 128)")
    load.add_argument("--max-tokens", type=COUNT, default=128, metavar="N", help="tokens generated per request (default 128)")
    load.add_argument("--seed", type=whole(0, 2**31 - 1), default=0, help="of the prompts and the arrival times (default 0)")
    load.add_argument("--timeout", type=POSITIVE, default=600.0, metavar="S", help="seconds one request may take (default 600)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    _add_workload(parser)


def _add_workload(parser: argparse.ArgumentParser) -> None:
    from launcher.bench_model import add_engine

    load = parser.add_argument_group("workload A", "prompts and answers of `bench offline`, all at once over HTTP, in a private cluster")
    load.add_argument("--workload", choices=["A"], help="this instead of the load above; --requests N takes the first N")
    load.add_argument("--frontends", type=whole(1, 64), default=1, metavar="N", help="HTTP processes (1)")
    load.add_argument("--tokenizers", type=whole(1, 64), default=1, metavar="N", help="tokenizer processes (1)")
    load.add_argument("--kill-worker", type=_kills, default=[], metavar="HOW,..", help="end the worker of a cluster meanwhile: kill, stop, segv")
    load.add_argument("--paced", type=number(0.1, 1e4), metavar="MS", help="no model: a worker that makes tokens up, with steps of MS milliseconds")
    add_engine(load.add_argument)


def add_place(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    """The flags that say which server is measured; returns their group."""
    where = parser.add_argument_group("what is measured")
    where.add_argument("--url", help="base URL of a server (default: the running cluster)")
    where.add_argument("--port", type=whole(1, 65535), help="the running cluster on this port, when there are several")
    where.add_argument("--start", action="store_true", help="start a private cluster, measure its cold start too, and stop it at the end")
    where.add_argument("--start-args", default="", metavar="ARGS", help='arguments of `cluster start` for --start, e.g. --start-args="--threads 2"')
    where.add_argument("--trace", metavar="FILE", help="with --start or --workload: write what each process does when to a file, for `trace summary`")
    where.add_argument("--model", help="with --start the model to serve, else the name to ask for (default: the server's first)")
    return where


def run(args: argparse.Namespace) -> int:
    """Measure and print; 0 when every request succeeded, else 1. Raises LauncherError when there is nothing to measure."""
    import asyncio

    from launcher import bench_served
    from launcher.cold import ColdCluster
    from launcher.figures import table
    from launcher.machine import commit, machine

    if args.workload:
        if args.start or args.url or args.port:
            raise LauncherError("--workload A makes a cluster of its own: leave --start, --url and --port out", 2)
        return bench_served.run(args)
    if args.start and args.url:
        raise LauncherError("--start makes a cluster of its own: leave --url out", 2)
    check_trace(args)
    report: dict[str, Any] = {"machine": machine(), "commit": commit(), "command": shlex.join(sys.argv)}
    if args.start:
        with ColdCluster(start_arguments(args)) as cluster:
            url, report["cold_start"] = cluster.url, cluster.measure()
            results = asyncio.run(_measure(args, url, None))
    else:
        url = args.url.rstrip("/") if args.url else choose_cluster(args.port).info.url
        results = asyncio.run(_measure(args, url, args.model))
    report |= results
    if args.json:
        print(json.dumps(report))
    else:
        print(_heading(report))
        print(table(report["runs"]))
    return 0 if all(result["ok"] == result["requests"] for result in report["runs"]) else 1


def start_arguments(args: argparse.Namespace) -> list[str]:
    """Arguments of `cluster start` for a private cluster."""
    model = ["--model", args.model] if args.model else []
    trace = ["--trace", args.trace] if args.trace else []
    return [*model, *trace, *shlex.split(args.start_args)]


def check_trace(args: argparse.Namespace) -> None:
    """Raises LauncherError when there is no cluster of this command's own to trace, or the file cannot be made."""
    if args.trace is not None:
        if not args.start:
            raise LauncherError("--trace needs --start: a running cluster is traced from its own start on (cluster start --trace FILE)", 2)
        new_file("--trace", args.trace, "a trace")


def _heading(report: dict[str, Any]) -> str:
    found = report["machine"]
    lines = [f"{report['model']} on {found['cpu']}, {found['cores']} cores; {report['prompt_tokens']} prompt + {report['max_tokens']} new tokens"]
    if "cold_start" in report:
        cold = report["cold_start"]
        lines.append(f"cold start: ready after {cold['ready_s']:.2f} s, first token after {cold['first_token_s']:.2f} s")
    lines += [f"errors at {result['load']}: {name} x{count}" for result in report["runs"] for name, count in result["errors"].items()]
    return "\n".join([*lines, "times in ms"])


async def _measure(args: argparse.Namespace, url: str, model: str | None) -> dict[str, Any]:
    from launcher import load
    from launcher.figures import summarise

    name, ids = await prepare(url, model)
    target = load.Target(url=url, model=name, max_tokens=args.max_tokens, timeout=args.timeout)
    warm = load.Target(url=url, model=name, max_tokens=WARM_UP_TOKENS, timeout=args.timeout)
    async with load.new_session() as session:
        outcome = await load.send(session, warm, load.make_prompts(ids, 1, 8, args.seed - 1)[0], 0.0)
    if outcome.error is not None:
        raise LauncherError(f"the warm-up request to {url} failed: {outcome.error}")
    line = StatusLine()
    runs = [summarise(label, await _one_run(args, target, ids, streams, line)) for label, streams in _plan(args)]
    line.clear()
    return {"url": url, "model": name, "prompt_tokens": args.prompt_tokens, "max_tokens": args.max_tokens, "seed": args.seed, "runs": runs}


def _plan(args: argparse.Namespace) -> list[tuple[str, int | None]]:
    if args.rate is not None:
        return [(f"{args.rate:g}/s", None)]
    return [(f"{streams} stream{'s' if streams > 1 else ''}", streams) for streams in args.streams]


async def _one_run(args: argparse.Namespace, target: "Target", ids: list[int], streams: int | None, line: StatusLine) -> "Measurement":
    from launcher import load

    requests = args.requests or (32 if streams is None else max(3, 2 * streams))
    prompts = load.make_prompts(ids, requests, args.prompt_tokens, args.seed + (streams or 0))
    watch = watcher(line, f"{args.rate:g} requests/s" if streams is None else f"{streams} at once", requests)
    if streams is None:
        return await load.open_loop(target, prompts, args.rate, args.seed, watch)
    return await load.closed_loop(target, prompts, streams, watch)


def watcher(line: StatusLine, label: str, requests: int) -> "Callable[[Outcome], None]":
    """Shows on `line` how many of the requests are done; called with each one that ended."""
    done = failed = 0

    def watch(outcome: "Outcome") -> None:
        nonlocal done, failed
        done += 1
        failed += outcome.error is not None
        line.show(f"{label}: {done} of {requests} requests, {failed} failed", key=f"{label} {4 * done // requests}")

    line.show(f"{label}: 0 of {requests} requests", key=f"{label} 0")
    return watch


async def prepare(url: str, model: str | None) -> tuple[str, list[int]]:
    """The model's name and the token ids of SEED_TEXT, of which prompts are made.

    Raises LauncherError when the server does not answer as one of ours.
    """
    import aiohttp

    from launcher import load

    try:
        async with load.new_session() as session:
            if model is None:
                async with session.get(f"{url}/v1/models", raise_for_status=True) as response:
                    model = str((await response.json())["data"][0]["id"])
            async with session.post(f"{url}/tokenize", json={"prompt": SEED_TEXT}, raise_for_status=True) as response:
                return model, list((await response.json())["tokens"])
    except (aiohttp.ClientError, OSError, KeyError, IndexError, ValueError) as error:
        raise LauncherError(f"{url} does not answer as a server to measure should: {error or type(error).__name__}") from error


def _kills(text: str) -> list[str]:
    names = text.lower().split(",")
    for name in names:
        if name not in KILLS:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(KILLS)}")
    return names


def _counts(text: str) -> list[int]:
    return [STREAMS(part) for part in text.split(",")]
