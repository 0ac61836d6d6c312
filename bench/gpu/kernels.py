"""Checks and times every kernel and variant: `launch.py bench kernels`, or `python -m bench.gpu.kernels [--json [FILE]] [--only REGEX]`.

Variants are compiled first, by all cores. A variant that is wrong is not timed. One line a case: the time of the settings the product uses, the
bytes it reads and writes (or its operations), its share of what this card's memory (copy bandwidth, measured in the same run) or matrix units
allow, and the best variant where it is another.
"""

import argparse
import contextlib
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from bench.gpu.case import BF16, BUILDING, DEVICE, TOLERANCE, Case, check, copy_bandwidth, seconds

PARTS = ("small", "attention", "products", "fp8")
PEAK_EDGE = 8192
"""Edge of the square product that measures the matrix units."""
STANDARD_OUTPUT = "-"

Row = tuple[float, str, float]
"""Seconds, infinite for a variant that is wrong; its label; its relative error."""


def all_cases(only: str | None) -> Iterator[Case]:
    """Those whose `part/name` the regular expression `only` finds something in."""
    from bench.gpu import attention_cases, fp8_cases, product_cases, small_cases  # need Triton

    makers = {"small": small_cases.cases, "attention": attention_cases.cases, "products": product_cases.cases, "fp8": fp8_cases.cases}
    for part in parts_of(only):
        yield from (case for case in makers[part]() if wanted(f"{part}/{case.name}", only))


def parts_of(only: str | None) -> list[str]:
    """The parts to look through: to make their cases only to learn their names takes time, so an expression may begin with its part."""
    named = re.match(rf"\^?({'|'.join(PARTS)})/", only or "")
    return [named[1]] if named else list(PARTS)


def wanted(name: str, only: str | None) -> bool:
    return only is None or re.search(only, name) is not None


def compile_part(part: int, parts: int, only: str | None) -> None:
    """Compile every `parts`-th variant into Triton's cache, launching nothing."""
    from kernels.launch import dependent_launch

    def warm(kernel: Any, grid: tuple[int, ...], rows: int, *arguments: Any, **settings: Any) -> None:
        dependent = dependent_launch(rows)
        kernel.warmup(*arguments, grid=grid, PDL=dependent, **(settings | ({"launch_pdl": True} if dependent else {})))

    next(all_cases(only), None)  # imports every kernel
    for name, module in list(sys.modules.items()):
        if name.startswith("kernels.") and hasattr(module, "launch") and name != "kernels.launch":
            setattr(module, "launch", warm)  # noqa: B010
    number = 0
    for case in all_cases(only):
        for run in case.variants.values():
            if number % parts == part:
                try:
                    run(0)
                except Exception as error:  # the timing run reports it
                    print(f"{case.name}: {type(error).__name__}", file=sys.stderr)
            number += 1
        torch.cuda.empty_cache()


def compile_all(only: str | None) -> None:
    parts = max(1, (os.cpu_count() or 2) - 2)
    command = [sys.executable, "-m", "bench.gpu.kernels", *(["--only", only] if only else [])]
    running = [subprocess.Popen(command, env={**os.environ, "PAGEWIRE_BENCH_PART": f"{part}/{parts}"}) for part in range(parts)]
    for process in running:
        process.wait()


def matrix_rate() -> float:
    """Operations a second of a large bf16 product on random data."""
    a, b = (torch.randn(PEAK_EDGE, PEAK_EDGE, device=DEVICE).to(BF16) for _ in range(2))
    return 2 * PEAK_EDGE**3 / seconds(lambda _: torch.mm(a, b), 2)


def measure(case: Case, until: float) -> list[Row]:
    """Every variant, the default first."""
    rows: list[Row] = []
    case.reset()
    seconds(next(iter(case.variants.values())), case.sets)  # the first to be timed after an allocation comes out some percent slow
    for label, run in sorted(case.variants.items(), key=lambda item: item[0] != case.default):
        if time.monotonic() > until and rows:
            break
        try:
            case.reset()
            error = check(case, run)
            took = seconds(run, case.sets) if error <= TOLERANCE else math.inf
        except Exception as problem:
            print(f"  {case.name} {label}: {type(problem).__name__} {str(problem)[:150]}", file=sys.stderr)
            error, took = math.nan, math.inf
        rows.append((took, label, error))
    return rows


def own_row(case: Case, rows: list[Row]) -> Row:
    """That of the settings the product uses."""
    return rows[0] if not case.default or rows[0][1] == case.default else min(rows)


def line(case: Case, rows: list[Row], ceiling: float) -> str:
    """One line of the table; `ceiling` in bytes or operations a second."""
    own, best = own_row(case, rows), min(rows)
    work = f"{case.floor / 1e9:9.1f} GFLOP" if case.operations else f"{case.floor / 1e6:9.2f} MB   "
    text = f"{case.name:36} {own[0] * 1e6:9.2f} us {work} {case.floor / ceiling / own[0]:6.1%}"
    if best[1] != own[1]:
        text += f"  best {best[0] * 1e6:9.2f} {case.floor / ceiling / best[0]:6.1%} {best[1]}"
    library = [took for took, label, _ in rows if label.startswith(("library", "torch"))]
    if library:
        text += f"  library {library[0] * 1e6:.2f}"
    wrong = [f"{label} {error:.1e}" for took, label, error in rows if took == math.inf]
    return text + (f"  WRONG {len(wrong)}: {wrong[:3]}" if wrong else "")


def entry(case: Case, rows: list[Row], ceiling: float) -> dict[str, Any]:
    """One case of the JSON report; null for the seconds of a variant that is wrong and for an error that is not a number."""
    own = own_row(case, rows)
    variants = [{"label": label, "seconds": _finite(took), "error": _finite(error)} for took, label, error in rows]
    return {
        "name": case.name, "operations" if case.operations else "bytes": case.floor, "seconds": _finite(own[0]),
        "share": case.floor / ceiling / own[0], "variants": variants,
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def measure_all(only: str | None, limit: float) -> dict[str, Any]:
    """The JSON report; prints a line for each case as it is done. `limit`: seconds after which no further variants are tried."""
    began = time.monotonic()
    compile_all(only)
    print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
    bandwidth, rate = copy_bandwidth(), matrix_rate()
    print(f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s, product {rate / 1e12:.0f} TFLOP/s, torch {torch.__version__}")
    cases = []
    for case in all_cases(only):
        ceiling = rate if case.operations else bandwidth
        rows = measure(case, began + limit)
        print(line(case, rows, ceiling), flush=True)
        cases.append(entry(case, rows, ceiling))
        torch.cuda.empty_cache()
    print(f"{time.monotonic() - began:.0f} s in all")
    return {"device": torch.cuda.get_device_name(), "copy_bytes_per_s": bandwidth, "operations_per_s": rate, "cases": cases}


def main() -> int:
    """Exit code: 0 done, 1 when the settings the product uses are wrong somewhere, 2 without a GPU or a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", nargs="?", const=STANDARD_OUTPUT, metavar="FILE", help="give one JSON object, here or in FILE")
    parser.add_argument("--only", metavar="REGEX", help=f"cases in whose part/name this is found; parts: {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=200.0, help="stop trying further variants after this long")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"error: kernels are measured on a GPU, and torch {torch.__version__} sees none here", file=sys.stderr)
        return 2
    if BUILDING:
        part, parts = os.environ["PAGEWIRE_BENCH_PART"].split("/")
        compile_part(int(part), int(parts), options.only)
        return 0
    with contextlib.redirect_stdout(sys.stderr if options.json == STANDARD_OUTPUT else sys.stdout):
        report = measure_all(options.only, options.seconds)
    if not report["cases"]:
        print(f"error: no case is called like {options.only!r}", file=sys.stderr)
        return 2
    if options.json == STANDARD_OUTPUT:
        print(json.dumps(report))
    elif options.json:
        with open(options.json, "w") as file:
            json.dump(report, file)
    return int(any(case["seconds"] is None for case in report["cases"]))


if __name__ == "__main__":
    sys.exit(main())
