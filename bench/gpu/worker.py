"""The whole GPU worker in one call, its tests and then the product's own benches: `python -m bench.gpu.worker [--models A,B] [--out DIR]`.

Speeds are not printed when a test failed. Logs and JSON go to --out; the table comes last.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TESTS = ["test_triton_resident.py", "test_resident_state.py", "test_resident_engine.py", "test_resident_families.py"]
WORKLOADS = ("offline", "single", "batch64")
MODELS = ("qwen3-0.6b", "llama3.2-1b", "llama3.1-8b")
FIGURES = ("tok_s", "ms_per_token", "ms_per_step", "prefill_tok_s", "ttft_ms", "share_of_floor", "busy_share", "gap_share", "copy_tb_s", "start_s")


def call(command: list[str], log: Path, seconds: float) -> tuple[int, float]:
    """Exit code (124 after `seconds`) and how long it took. Its errors go to `log`, its output to the .json beside it."""
    began = time.perf_counter()
    with log.open("wb") as errors, log.with_suffix(".json").open("wb") as out:
        try:
            code = subprocess.run([sys.executable, *command], cwd=ROOT, stdout=out, stderr=errors, timeout=seconds, check=False).returncode
        except subprocess.TimeoutExpired:
            code = 124
    return code, time.perf_counter() - began


def tests(out: Path, seconds: float) -> bool:
    """Run the tests; True when all passed."""
    names = [f"tests/kernels/{name}" for name in TESTS]
    code, took = call(["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *names], out / "tests.log", seconds)
    lines = (out / "tests.json").read_text(errors="replace").splitlines()
    print(f"tests: exit code {code} after {took:.0f} s", *lines[-25 if code else -1 :], sep="\n", flush=True)
    return code == 0


def bench(workload: str, model: str, out: Path, seconds: float, more: list[str]) -> str:
    """One line of the table."""
    log = out / f"{workload}-{model}.log"
    code, took = call(["launch.py", "bench", workload, "--model-shape", model, "--dummy-weights", "--json", *more], log, seconds)
    if code:
        return f"{workload:8} {model:12} failed ({code}) after {took:.0f} s: {log.read_text(errors='replace')[-1500:]}"
    report: dict[str, Any] = json.loads(log.with_suffix(".json").read_bytes())
    return f"{workload:8} {model:12} " + "  ".join(f"{name} {report[name]:g}" for name in FIGURES if name in report) + f"  ({took:.0f} s)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="qwen3-0.6b", help="shapes, separated by commas: " + ", ".join(MODELS))
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    parser.add_argument("--seconds", type=float, default=120.0, help="the most that one part may take")
    parser.add_argument("--no-tests", action="store_true")
    args, more = parser.parse_known_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if not args.no_tests and not tests(args.out, args.seconds):
        return 1
    for model in args.models.split(","):
        for workload in args.workloads.split(","):
            print(bench(workload, model, args.out, args.seconds, more), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
