"""Checks and times every kernel and variant: `python -m bench.gpu.kernels [--json FILE] [--only PART]`.

Variants are compiled first, by all cores. A variant that is wrong is not timed. One line a case: the time of the settings the product uses, its
share of what this card's memory (copy bandwidth, measured in the same run) or matrix units allow, and the best variant where it is another.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from bench.gpu import attention_cases, fp8_cases, product_cases, small_cases
from bench.gpu.case import BF16, BUILDING, DEVICE, TOLERANCE, Case, check, copy_bandwidth, seconds
from kernels.launch import dependent_launch

PARTS = {"small": small_cases.cases, "attention": attention_cases.cases, "products": product_cases.cases, "fp8": fp8_cases.cases}
PEAK_EDGE = 8192
"""Edge of the square product that measures the matrix units."""


def all_cases(only: str | None) -> Iterator[Case]:
    for name, cases in PARTS.items():
        if only is None or name in only.split(","):
            yield from cases()


def compile_part(part: int, parts: int, only: str | None) -> None:
    """Compile every `parts`-th variant into Triton's cache, launching nothing."""

    def warm(kernel: Any, grid: tuple[int, ...], rows: int, *arguments: Any, **settings: Any) -> None:
        dependent = dependent_launch(rows)
        kernel.warmup(*arguments, grid=grid, PDL=dependent, **(settings | ({"launch_pdl": True} if dependent else {})))

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


def measure(case: Case, until: float) -> list[tuple[float, str, float]]:
    """(seconds, label, error) of every variant, the wrong ones with infinite seconds; the default first."""
    rows: list[tuple[float, str, float]] = []
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
            print(f"  {case.name} {label}: {type(problem).__name__} {str(problem)[:150]}")
            error, took = math.nan, math.inf
        rows.append((took, label, error))
    return rows


def line(case: Case, rows: list[tuple[float, str, float]], ceiling: float) -> str:
    """One line of the table."""
    own = rows[0] if not case.default or rows[0][1] == case.default else min(rows)
    best = min(rows)
    text = f"{case.name:36} {own[0] * 1e6:9.2f} us {case.floor / ceiling / own[0]:6.1%}"
    if best[1] != own[1]:
        text += f"  best {best[0] * 1e6:9.2f} {case.floor / ceiling / best[0]:6.1%} {best[1]}"
    library = [took for took, label, _ in rows if label.startswith(("library", "torch"))]
    if library:
        text += f"  library {library[0] * 1e6:.2f}"
    wrong = [f"{label} {error:.1e}" for took, label, error in rows if took == math.inf]
    return text + (f"  WRONG {len(wrong)}: {wrong[:3]}" if wrong else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write every measurement here")
    parser.add_argument("--only", help=f"parts, comma-separated, of {', '.join(PARTS)}")
    parser.add_argument("--seconds", type=float, default=200.0, help="stop trying further variants after this long")
    options = parser.parse_args()
    if BUILDING:
        part, parts = os.environ["PAGEWIRE_BENCH_PART"].split("/")
        compile_part(int(part), int(parts), options.only)
        return
    began = time.monotonic()
    compile_all(options.only)
    print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
    bandwidth, rate = copy_bandwidth(), matrix_rate()
    print(f"{torch.cuda.get_device_name()}: copy {bandwidth / 1e12:.2f} TB/s, product {rate / 1e12:.0f} TFLOP/s, torch {torch.__version__}")
    report: list[dict[str, Any]] = [{"copy_bytes_per_s": bandwidth, "operations_per_s": rate}]
    for case in all_cases(options.only):
        rows = measure(case, began + options.seconds)
        print(line(case, rows, rate if case.operations else bandwidth), flush=True)
        report.append({"name": case.name, "floor": case.floor, "rows": rows})
        torch.cuda.empty_cache()
    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file)
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
