"""`python -m tests.support.soak --seconds 1800 --out soak.json`: mixed traffic for long, a fifth of whose clients leave, and what the processes take.

Every few seconds a sample of all processes is taken. At the end, when all is at rest, nothing may be held, and after the warm-up memory and
descriptors may not grow. Exit code 1 when they do, or when an answer was not what it must be. `tests/support/plot_soak.py` draws the file.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

from launcher.machine import commit, machine
from tests.support.cluster import ROOT, Cluster, running_cluster
from tests.support.figures import busy, figures
from tests.support.probes import Sample, report, sample
from tests.support.traffic import Traffic
from tests.support.waiting import until

MOST_DRIFT = 0.02
LITTLE_MIB = 1.0
"""That a small process may grow by all the same."""
SPARE_DESCRIPTORS = 4
SETTLE_SECONDS = 120.0


class Soak(msgspec.Struct, kw_only=True):
    """The file. `warm_up` seconds from the first sample do not count."""

    command: list[str]
    machine: dict[str, Any]
    commit: str | None
    model: str
    clients: int
    leaving: float
    warm_up: float
    samples: list[Sample]
    ended: dict[str, int] = {}
    left: dict[str, int] = {}
    wrong: list[str] = []
    rows: list[dict[str, Any]] = []
    held: dict[str, float] = {}
    scheduler: dict[str, float] = {}


async def watch(cluster: Cluster, traffic: Traffic, soak: Soak, every: float, ends: float, out: Path) -> None:
    """Samples until it `ends`, each kept in the file at once."""
    begun = time.monotonic()
    while time.monotonic() < ends:
        requests = sum(traffic.ended.values()) + sum(traffic.left.values())
        soak.samples.append(await asyncio.to_thread(sample, cluster, time.monotonic() - begun, requests))
        soak.ended, soak.left, soak.wrong = dict(traffic.ended), dict(traffic.left), traffic.wrong
        await asyncio.to_thread(out.write_bytes, msgspec.json.encode(soak))
        await asyncio.sleep(every)


async def run(cluster: Cluster, traffic: Traffic, soak: Soak, args: argparse.Namespace) -> None:
    ends = time.monotonic() + args.seconds
    await asyncio.gather(
        traffic.clients(args.clients, lambda: time.monotonic() < ends),
        watch(cluster, traffic, soak, args.every, ends, args.out),
    )
    try:
        await until(lambda: all(value == 0 for value in busy(cluster).values()), SETTLE_SECONDS)
    except TimeoutError:
        soak.held = {name: value for name, value in busy(cluster).items() if value}
    soak.ended, soak.left = dict(traffic.ended), dict(traffic.left)
    soak.scheduler = (await figures(cluster)).counters
    soak.rows = report([found for found in soak.samples if found.at >= soak.warm_up])
    args.out.write_bytes(msgspec.json.encode(soak))


def faults(soak: Soak) -> list[str]:
    """What is not as it should be."""
    found = [f"wrong: {what}" for what in soak.wrong]
    if soak.held:
        found.append(f"held at rest: {soak.held}")
    for row in soak.rows:
        if row["grown"] > MOST_DRIFT and row["grown_mib"] > LITTLE_MIB:
            found.append(f"{row['process']} grew by {row['grown']:.1%} ({row['grown_mib']} MiB)")
        if row["descriptors_grown"] > SPARE_DESCRIPTORS:
            found.append(f"{row['process']} has {row['descriptors_grown']} descriptors more")
    if len(soak.rows) < len(soak.samples[0].processes):
        found.append("a process has died")
    found += [f"{name}: {soak.scheduler[name]:.0f}" for name in ("failed_steps", "invariant_violations", "errors") if soak.scheduler.get(name)]
    return found


def fixture(name: str, folder: str) -> Path:
    """A tiny checkpoint, made in `folder`."""
    subprocess.run([sys.executable, str(ROOT / "tests" / "fixtures" / "make_fixtures.py"), folder], check=True, capture_output=True)
    return Path(folder) / name


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.support.soak")
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--warm-up", type=float, default=300.0)
    parser.add_argument("--every", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("--leaving", type=float, default=0.3, help="share of the clients that mean to; a quick answer may be whole before")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="a name, a path, or fixture:NAME")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--out", type=Path, default=Path("soak.json"))
    parser.add_argument("options", nargs="*", help="more arguments of `cluster start`, after --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = fixture(args.model.removeprefix("fixture:"), folder) if args.model.startswith("fixture:") else args.model
        options = ["--max-context", str(args.context), "--kv-tokens", str(16 * args.context), *args.options]
        with running_cluster(model, *options) as cluster:
            traffic = Traffic(cluster, args.context, leaving=args.leaving)
            soak = Soak(
                command=sys.argv, machine=machine(), commit=commit(), model=cluster.model, clients=args.clients, leaving=args.leaving,
                warm_up=args.warm_up, samples=[],
            )  # fmt: skip
            asyncio.run(run(cluster, traffic, soak, args))
    for row in soak.rows:
        print(json.dumps(row))
    print(f"{sum(soak.ended.values())} answers {soak.ended}, {sum(soak.left.values())} clients left {soak.left}")
    found = faults(soak)
    print("\n".join(found) or "flat: nothing grew and nothing is held")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
