"""`bench offline`, `single` and `batch64`: a model's speed through a real scheduler and worker process, beside the floor of the device."""

import argparse
import json
import shlex
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from checkpoint.config import ModelConfig, read_config
from checkpoint.errors import CheckpointError
from checkpoint.shapes import SHAPES
from launcher.errors import LauncherError
from launcher.floor import Floor
from launcher.new_file import new_file
from launcher.options import add_formats, check_formats, device, number, whole
from launcher.pair import Order, Pair, Record
from launcher.sizes import sizes_from
from messages.sampling import SamplingParams

SINGLE = (128, 512)
BATCH = (64, 1024, 257)
"""Prompts, their length, and the new tokens of each: the first comes with the prefill."""
IDS = 10_000
WARM_STEPS = 4
"""Decode steps left out after the last prompt is done: the steps before them were mixed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that all three have."""
    add = parser.add_argument
    add("--model", default="", metavar="M", help="a model folder or .gguf file")
    add_engine(add)
    add("--trace", metavar="FILE", help="write what both processes do when to a new file, for Perfetto, chrome://tracing and `trace summary`")
    add("--json", action="store_true", help="print one JSON object")


def add_engine(add: Callable[..., Any]) -> None:
    """The flags of model shape and engine, each given to `add`."""
    add("--model-shape", default="", metavar="X", help="a published shape instead, with --dummy-weights: qwen3-0.6b, llama3.2-1b, llama3.1-8b")
    add("--dummy-weights", action="store_true", help="random weights")
    add("--device", type=device, default="cuda", help="cpu, cuda or cuda:N (cuda)")
    add_formats(add)
    add("--threads", type=whole(0, 4096), default=0, help="CPU threads of the worker; 0: all cores")
    add("--kv-tokens", type=whole(0, 2**31 - 1), default=0, metavar="N", help="tokens of KV memory; 0: what fits")
    add("--gpu-memory-utilization", type=number(0.05, 1), default=0.9, metavar="X", help="share of the GPU's memory that may be used (0.9)")
    add("--max-slots", type=whole(1, 4096), metavar="N", help="sequences computed at once (64; on a GPU 256)")
    add("--max-step-tokens", type=whole(1, 65536), metavar="N", help="tokens computed in one step (512; on a GPU 8448)")
    add("--chunk-tokens", type=whole(1, 65536), metavar="N", help="prompt tokens computed in one step (256; on a GPU 8192)")
    add("--max-context", type=whole(2, 2**31 - 1), default=4096, metavar="N", help="longest prompt plus answer (4096)")
    add("--run-ahead", type=whole(1, 8), metavar="N", help="plans in flight at once (2; on a GPU 3)")
    add("--runs", type=whole(1, 100), default=3, metavar="N", help="passes; the first one warms up, the median of the others counts (3)")


def add_workload(parser: argparse.ArgumentParser) -> None:
    """The flag of `bench offline`."""
    parser.add_argument("--workload", choices=["A"], default="A", help="A: 256 prompts of 100 to 1,024 ids and as many new tokens (A)")


def run_offline(args: argparse.Namespace) -> int:
    """Workload A. Its prompts are checked before anything is timed."""
    from simulator.offline import offline256

    jobs = offline256().fixed
    orders = [Order(prompt=job.prompt, max_tokens=job.max_tokens or 0) for job in jobs]

    def figures(floor: Floor, record: Record) -> dict[str, Any]:
        least = floor.offline([len(order.prompt) for order in orders], [order.max_tokens for order in orders])
        return {"tok_s": record.tokens / record.seconds, "seconds": record.seconds, "floor_s": least, "share_of_floor": least / record.seconds}

    return _run(args, "offline A", orders, SamplingParams(temperature=0.6), figures)


def run_single(args: argparse.Namespace) -> int:
    """Workload B: milliseconds a token of one stream."""
    prompt, count = SINGLE
    orders = [Order(prompt=_ids(args, prompt), max_tokens=count)]

    def figures(floor: Floor, record: Record) -> dict[str, Any]:
        step = (record.times[-1] - record.times[0]) / (count - 1)
        least = floor.decode(1, prompt + count / 2)
        return {"ms_per_token": step * 1e3, "ttft_ms": record.times[0] * 1e3, "floor_ms": least * 1e3, "share_of_floor": least / step}

    return _run(args, "single", orders, SamplingParams(temperature=0.0), figures)


def run_batch(args: argparse.Namespace) -> int:
    """Workload C: prefill tokens a second, then milliseconds a decode step."""
    rows, prompt, count = BATCH
    orders = [Order(prompt=_ids(args, prompt, seed), max_tokens=count) for seed in range(rows)]

    def figures(floor: Floor, record: Record) -> dict[str, Any]:
        started = max(record.first)
        full = [time for time, width in zip(record.times, record.rows, strict=True) if width == rows and time >= started][WARM_STEPS:]
        if len(full) < 2:
            raise LauncherError(f"the {rows} prompts never decoded together: --max-slots and the KV memory must have room for them")
        step = (full[-1] - full[0]) / (len(full) - 1)
        least = floor.decode(rows, prompt + count / 2)
        return {
            "ms_per_step": step * 1e3, "prefill_tok_s": rows * prompt / started, "floor_ms": least * 1e3, "share_of_floor": least / step,
            "prefill_floor_tok_s": rows * prompt / floor.prefill(rows * prompt),
        }  # fmt: skip

    return _run(args, "batch64", orders, SamplingParams(temperature=0.0), figures)


def _ids(args: argparse.Namespace, count: int, seed: int = 0) -> "np.ndarray[Any, np.dtype[np.int32]]":
    return np.random.default_rng(seed).integers(0, min(IDS, read_shape(args).vocab), count, dtype=np.int32)


def _run(
    args: argparse.Namespace, name: str, orders: list[Order], sampling: SamplingParams, figures: Callable[[Floor, Record], dict[str, Any]]
) -> int:
    from launcher.machine import commit, machine
    from launcher.tracing import traced

    config = read_shape(args)
    path = None if args.trace is None else new_file("--trace", args.trace, "a trace")
    with traced(path) as trace, Pair(*engine_arguments(args), trace=trace) as pair:
        floor = Floor(config=config, bandwidth=float(pair.facts["copy_bandwidth"]), **_items(args))
        pair.warm()
        found: list[dict[str, Any]] = []
        before = pair.counters()
        for _ in range(args.runs):
            record = pair.play(orders, sampling)
            after = pair.counters()
            found.append(figures(floor, record) | _device(before, after, record.seconds))
            before = after
        log = [line for line in pair.log if "GPU memory" in line]
    counted = found[1:] or found
    report = {
        "workload": name, "model": args.model_shape or args.model, "machine": machine(), "commit": commit(), "command": shlex.join(sys.argv),
        "copy_tb_s": round(floor.bandwidth / 1e12, 3), "start_s": round(pair.start_seconds, 2),
        **{key: _rounded(statistics.median(run[key] for run in counted)) for key in counted[0]}, "runs": found, "memory": log,
    }  # fmt: skip
    print(json.dumps(report) if args.json else _text(report))
    return 0


def _items(args: argparse.Namespace) -> dict[str, int]:
    """Bytes of elements, for the floor."""
    item = 2 if args.device != "cpu" else 4
    named = {"auto": item, "float32": 4, "bfloat16": 2, "fp8": 1}
    return {"item": item, "matrix_item": named[args.weights], "kv_item": named[args.kv_dtype]}


def _device(before: dict[str, float], after: dict[str, float], seconds: float) -> dict[str, float]:
    """Shares of the time in which the device computed, and in which it waited between two steps."""
    change = {name: after.get(name, 0.0) - before.get(name, 0.0) for name in ("steps", "step_seconds", "gap_seconds")}
    return {"steps": change["steps"], "busy_share": change["step_seconds"] / seconds, "gap_share": change["gap_seconds"] / seconds}


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def read_shape(args: argparse.Namespace) -> ModelConfig:
    """What `--model` or `--model-shape` names. Raises LauncherError."""
    if bool(args.model) == bool(args.model_shape):
        raise LauncherError("give either --model or --model-shape", 2)
    if args.model_shape and args.model_shape not in SHAPES:
        raise LauncherError(f"--model-shape {args.model_shape!r} is not one of {', '.join(SHAPES)}", 2)
    if args.model_shape and not args.dummy_weights:
        raise LauncherError("a shape has no weights: add --dummy-weights", 2)
    try:
        return SHAPES[args.model_shape] if args.model_shape else read_config(Path(args.model))
    except CheckpointError as error:
        raise LauncherError(str(error)) from error


def engine_arguments(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of the scheduler and of the worker."""
    sizes = sizes_from(args)
    check_formats(args)
    scheduler = {
        "max_context": args.max_context, "chunk_tokens": sizes.chunk_tokens, "run_ahead": sizes.run_ahead, "prefix_cache": False,
    }  # fmt: skip
    worker = {
        "model": args.model, "model_shape": args.model_shape, "dummy_weights": args.dummy_weights, "device": args.device, "dtype": args.dtype,
        "kv_dtype": args.kv_dtype, "weights": args.weights, "deterministic": args.deterministic, "threads": args.threads, "kv_tokens": args.kv_tokens,
        "gpu_memory_utilization": args.gpu_memory_utilization, "max_slots": sizes.max_slots, "max_step_tokens": sizes.max_step_tokens,
        "max_context": args.max_context, "measure_bandwidth": True,
    }  # fmt: skip
    return scheduler, worker


def _text(report: dict[str, Any]) -> str:
    named = (
        "tok_s",
        "seconds",
        "ms_per_token",
        "ms_per_step",
        "prefill_tok_s",
        "ttft_ms",
        "floor_s",
        "floor_ms",
        "share_of_floor",
        "busy_share",
        "gap_share",
    )
    values = "  ".join(f"{name} {report[name]:g}" for name in named if name in report)
    lines = [f"{report['workload']}, {report['model']}: {values}", f"copy bandwidth in the same run {report['copy_tb_s']:g} TB/s"]
    return "\n".join([*lines, *report["memory"]])
