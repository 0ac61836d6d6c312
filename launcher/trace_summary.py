"""`trace summary`: what a trace says about steps: how long they take, where their time goes, how long the device waits between them."""

import argparse
import json
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

from launcher.figures import percentile
from launcher.options import whole
from launcher.trace_list import stages_of
from launcher.trace_steps import DEVICE, Step, TraceSteps, read_steps
from messages.trace import DECODE

STAGES = {
    "plan": "the scheduler composes and sends",
    "queue": "on its way, and until the worker takes it up",
    "launch": "the worker's host applies, uploads, launches",
    "wait": "launched, while the device computes what is before it",
    "device": "the device computes",
    "result": "read, sent back and taken in",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `trace summary`."""
    parser.add_argument("file", metavar="FILE", help="a trace, made with `cluster start --trace FILE` or `bench ... --trace FILE`")
    parser.add_argument("--rows", type=whole(1, 65536), metavar="N", help="idle time between decode steps of at least N rows (the most seen)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    """Print the summary. Raises LauncherError when the file is no trace."""
    report = summary(read_steps(Path(args.file)), args.rows)
    print(json.dumps(report) if args.json else text(report))
    return 0


def summary(trace: TraceSteps, rows: int | None) -> dict[str, Any]:
    """Times in microseconds, shares from 0 to 1; `rows` None: the most decode rows of a step."""
    steps = trace.steps
    kinds = {kind: [step for step in steps if step.kind == kind] for kind in DEVICE}
    begin, end = (steps[0].device or (0.0, 0.0))[0], max((step.device or (0.0, 0.0))[1] for step in steps)
    most = max(step.decode_rows for step in steps)
    wanted = rows or max(1, most)
    return {
        "file": trace.path, "events": trace.events, "damaged_lines": trace.damaged, "has_end": trace.whole, "cut": trace.cut,
        "processes": trace.processes, "steps": len(steps),
        "seconds": round((end - begin) / 1e6, 6), "busy_share": _share(sum(step.seconds for step in steps), end - begin), "most_rows": most,
        "device": {kind: _times([step.seconds for step in found]) for kind, found in kinds.items() if found},
        "idle": {"rows": 1} | idle(steps, 1), "idle_wide": {"rows": wanted} | idle(steps, wanted), "stages": stages(steps),
    }  # fmt: skip


def idle(steps: list[Step], rows: int) -> dict[str, Any]:
    """How long the device waited between decode steps of at least `rows` rows that follow each other, and its share of their time."""
    pairs = [
        after for before, after in pairwise(steps)
        if before.kind == after.kind == DECODE and min(before.decode_rows, after.decode_rows) >= rows
        and (before.session, before.number + 1) == (after.session, after.number)
    ]  # fmt: skip
    waited = sum(step.gap for step in pairs)
    return {"share": _share(waited, waited + sum(step.seconds for step in pairs)), **_times([step.gap for step in pairs])}


def stages(steps: list[Step]) -> dict[str, dict[str, float]]:
    """Of the steps whose plan and result are in the trace too: the median of each stage and its share of all their time."""
    found: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for step in steps:
        times = stages_of(step)
        if all(time is not None for time in times.values()):
            for stage, time in times.items():
                found[stage].append(time or 0.0)
    total = sum(map(sum, found.values()))
    return {stage: {"median": round(statistics.median(times), 2), "share": _share(sum(times), total)} for stage, times in found.items() if times}


def _times(times: list[float]) -> dict[str, float]:
    if not times:
        return {"count": 0}
    return {"count": len(times), "median": round(percentile(times, 50), 2), "p99": round(percentile(times, 99), 2), "most": round(max(times), 2)}


def _share(part: float, whole_: float) -> float:
    return round(part / whole_, 6) if whole_ > 0 else 0.0


def text(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [f"{report['file']}: {report['steps']:,} steps in {report['seconds']:.3f} s, by {', '.join(report['processes'])}"]
    if report["damaged_lines"]:
        lines.append(f"{report['damaged_lines']} lines could not be read")
    if report["cut"]:
        lines.append(f"cut: {', '.join(report['cut'])} could not write all of it (the log of the cluster says why), so later steps are missing")
    if not report["has_end"]:
        lines.append("without an end: the cluster was killed, still runs, or could not write it, so the last steps may be missing")
    lines += [f"the device computed for {report['busy_share']:.1%} of the time from the first step to the last", "", _row("on the device", "steps")]
    lines += [_row(kind, f"{times['count']:,}", times) for kind, times in report["device"].items()]
    lines += ["", _row("idle between decode steps", "pairs") + "   share"]
    for found in (report["idle"], report["idle_wide"])[: 1 + (report["idle_wide"]["rows"] > 1)]:
        named = f"of {found['rows']} rows or more" if found["rows"] > 1 else "of any rows"
        lines.append(_row(named, f"{found['count']:,}", found) + (f"  {found['share']:.2%}" if found["count"] else ""))
    lines += ["", f"{'a step, plan to result':<28}{'':>10}{'median us':>12}   share"]
    lines += [f"{stage:<28}{'':>10}{found['median']:>12,.1f}  {found['share']:>6.1%}  {STAGES[stage]}" for stage, found in report["stages"].items()]
    return "\n".join(lines)


def _row(name: str, count: str, times: dict[str, float] | None = None) -> str:
    if times is None:
        return f"{name:<28}{count:>10}{'median us':>12}{'p99 us':>12}{'most us':>12}"
    return f"{name:<28}{count:>10}" + "".join(f"{times[key]:>12,.1f}" for key in ("median", "p99", "most") if key in times)
