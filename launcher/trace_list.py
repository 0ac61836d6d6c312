"""`trace steps`: the steps of a trace one by one, with the time of each stage."""

import argparse
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launcher.options import whole
from launcher.trace_steps import DEVICE, Step, read_steps

COLUMNS = ("step", "kind", "prefill", "rows", "at ms", "plan", "queue", "launch", "wait", "device", "gap", "result")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `trace steps`."""
    parser.add_argument("file", metavar="FILE", help="a trace, made with `cluster start --trace FILE` or `bench ... --trace FILE`")
    parser.add_argument("--first", type=whole(1, 2**31 - 1), default=1, metavar="N", help="begin with the N-th step of those asked for (1)")
    parser.add_argument("--count", type=whole(1, 2**31 - 1), default=40, metavar="N", help="so many steps (40)")
    parser.add_argument("--kind", choices=DEVICE, action="append", help="steps of this kind only; may be repeated")
    parser.add_argument("--json", action="store_true", help="print one JSON array")


def run(args: argparse.Namespace) -> int:
    """Print the steps. Raises LauncherError when the file is no trace."""
    steps = read_steps(Path(args.file)).steps
    begin = steps[0].plan or steps[0].device or (0.0, 0.0)
    wanted = (step for step in steps if args.kind is None or step.kind in args.kind)
    rows = [row(step, begin[0]) for step in itertools.islice(wanted, args.first - 1, args.first - 1 + args.count)]
    print(json.dumps(rows) if args.json else "\n".join(table(rows)))
    return 0


def row(step: Step, origin: float) -> dict[str, Any]:
    """`at ms`: when its plan was begun, since `origin`; the stages in microseconds, None where the trace lacks an end of them."""
    at = step.plan or step.launch or step.device or (origin, origin)
    return {
        "step": step.number, "kind": step.kind, "prefill": step.prefill_tokens, "rows": step.decode_rows, "at ms": round((at[0] - origin) / 1e3, 3),
        **{name: None if time is None else round(time, 1) for name, time in stages_of(step).items()}, "gap": round(step.gap, 1),
    }  # fmt: skip


def stages_of(step: Step) -> dict[str, float | None]:
    """Microseconds of each stage of a step, in order; see launcher.trace_summary.STAGES."""
    plan, launch, device, result = step.plan, step.launch, step.device, step.result
    return {
        "plan": plan[1] - plan[0] if plan else None,
        "queue": max(0.0, launch[0] - plan[1]) if plan and launch else None,
        "launch": launch[1] - launch[0] if launch else None,
        "wait": max(0.0, device[0] - launch[1]) if launch and device else None,
        "device": device[1] - device[0] if device else None,
        "result": max(0.0, result[1] - device[1]) if device and result else None,
    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Lines for people; times in microseconds but for `at ms`."""
    yield "".join(f"{name:>10}" for name in COLUMNS)
    for found in rows:
        yield "".join(f"{'' if found[name] is None else found[name]:>10}" for name in COLUMNS)
