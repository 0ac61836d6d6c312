"""`bench scheduler`: CPU time of the scheduler's steps, beside the targets."""

import argparse
import json
import shlex
import sys
from typing import Any

from launcher.options import whole

ROWS = whole(1, 4096)
DEFAULT_ROWS = [32, 128, 256, 1024]
COLUMNS = ("rows", "load", "cache", "median us", "mean", "p99", "target", "plan bytes", "max", "w/o new blocks", "target")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench scheduler`."""
    parser.add_argument("--rows", type=_counts, default=DEFAULT_ROWS, metavar="N,N", help="rows that run at once (32,128,256,1024)")
    parser.add_argument("--steps", type=whole(10, 1_000_000), default=1000, metavar="N", help="steps per measurement (1000)")
    parser.add_argument("--run-ahead", type=whole(1, 8), default=2, metavar="N", help="plans in flight at once (2)")
    parser.add_argument("--no-growth", action="store_true", help="leave out the measurements after 100,000 requests and with 30,000 tokens per row")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def _counts(text: str) -> list[int]:
    return [ROWS(part) for part in text.split(",")]


def run(args: argparse.Namespace) -> int:
    """Measure and print. Targets that are missed are marked; the exit code is 0 all the same, for machines differ."""
    from launcher.machine import commit, machine
    from launcher.progress import StatusLine
    from simulator.bench import BenchOptions, measure

    line = StatusLine()
    found = measure(BenchOptions(rows=args.rows, steps=args.steps, run_ahead=args.run_ahead, growth=not args.no_growth), line.show)
    line.clear()
    report = {"machine": machine(), "commit": commit(), "command": shlex.join(sys.argv), "run_ahead": args.run_ahead} | found
    print(json.dumps(report) if args.json else text(report))
    return 0


def text(report: dict[str, Any]) -> str:
    """The report for people."""
    from launcher.figures import aligned

    machine = report["machine"]
    lines = [
        f"CPU time of one scheduler step: plan, result and both messages; {machine['cpu']}, run-ahead {report['run_ahead']}",
        "steady: every row decodes, one in sixteen needs a block; churn: in each step one row ends and one is admitted",
        "a new block takes 12 bytes of a plan; the plan is also shown without them",
        "",
        aligned([COLUMNS, *(_row(run) for run in report["runs"])]),
    ]
    if report["growth"]:
        lines += ["", "what must not cost:"]
        lines += [_comparison(found) for found in report["growth"]]
    if any(run[name] is False for run in report["runs"] for name in ("time_ok", "bytes_ok")):
        lines += ["", "! a target is missed"]
    return "\n".join(lines)


def _comparison(found: dict[str, Any]) -> str:
    small, large = (f"{found[f'{size}_us']:.0f} us at {found[size]:,}" for size in ("small", "large"))
    return f"  {found['what']}, {found['rows']} rows: {small}, {large}"


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    times, sizes = run["step_us"], run["plan_bytes"]
    target = "-" if run["target_us"] is None else f"<= {run['target_us']:.0f}{'' if run['time_ok'] else ' !'}"
    return (
        str(run["rows"]), run["load"], "on" if run["prefix_cache"] else "off",
        *(f"{times[name]:.0f}" for name in ("median", "mean", "p99")), target,
        *(f"{sizes[name]:,}" for name in ("median", "max", "median_without_new_blocks")),
        f"<= {run['target_bytes']:,}{'' if run['bytes_ok'] else ' !'}",
    )  # fmt: skip
