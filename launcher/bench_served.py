"""`bench serve --workload A`: the prompts of `bench offline` again, over HTTP with a connection each, beside the offline figure of the same run."""

import argparse
import json
import shlex
import statistics
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from launcher.bench_frontend import HOST, others, settle
from launcher.bench_model import engine_arguments, read_shape
from launcher.cpu_time import Cpu
from launcher.errors import LauncherError
from launcher.new_file import new_file
from launcher.pair import Order, Pair
from launcher.specs import FRONTENDS, TOKENIZERS, WORKER_NAME, WORKERS, ProcessSpec
from messages.cluster import SCHEDULER_NAME
from messages.sampling import SamplingParams

if TYPE_CHECKING:
    from launcher.wire_load import Load

TEMPERATURE = 0.6
LIMIT_SECONDS = 1800.0


class Served(Pair):
    """Frontends and tokenizers too. The scheduler and the worker serve them and the benchmark, which plays the offline passes."""

    def __init__(self, args: argparse.Namespace, vocab: int, trace: str | None) -> None:
        from launcher.start import free_port

        scheduler, worker = engine_arguments(args)
        super().__init__(scheduler, worker, trace=trace)
        self._vocab = vocab
        self.address = (HOST, free_port(HOST, 0))
        self.fronts = [f"frontend{number}" for number in range(args.frontends)]
        self._texts = [f"tokenizer{number}" for number in range(args.tokenizers)]
        self._model, self._shape = args.model, args.model_shape
        self._paced = args.paced

    def tokenizers(self) -> list[str]:
        return self._texts

    def specs(self) -> Sequence[ProcessSpec]:
        from frontend.args import FrontendArgs
        from tokenizer_proc.args import TokenizerArgs

        front: dict[str, Any] = {"host": HOST, "port": self.address[1], "model_name": "A", "tokenizers": self._texts, "created": 0}
        text: dict[str, Any] = {"model": self._model, "model_shape": self._shape, "frontends": self.fronts}
        worker, scheduler = super().specs()
        return [
            worker if self._paced is None else self._paced_worker(),
            scheduler,
            *(ProcessSpec(package="tokenizer_proc", args=TokenizerArgs(**self.common(name), **text), stage=TOKENIZERS) for name in self._texts),
            *(
                ProcessSpec(package="frontend", args=FrontendArgs(**self.common(name), **front, peers=others(self.fronts, name)), stage=FRONTENDS)
                for name in self.fronts
            ),
        ]

    def _paced_worker(self) -> ProcessSpec:
        from launcher.paced_worker import PacedArgs

        sizes = {name: self.worker_arguments[name] for name in ("max_slots", "max_step_tokens")}
        args = PacedArgs(**self.common(WORKER_NAME), vocab=self._vocab, step_seconds=(self._paced or 0.0) / 1e3, **sizes)
        return ProcessSpec(package="launcher.paced_worker", args=args, stage=WORKERS)

    def cpu(self) -> dict[str, Cpu]:
        """By process, processes of a kind together."""
        kinds = {"frontends": self.fronts, "tokenizers": self._texts, "scheduler": [SCHEDULER_NAME], "worker": [WORKER_NAME]}
        return {kind: Cpu.of([self.pid(name) for name in names]) for kind, names in kinds.items()}


def run(args: argparse.Namespace) -> int:
    """Measure and print; 0 when every request succeeded, else 1. Raises LauncherError."""
    from launcher import bench_kills
    from launcher.machine import commit, machine
    from launcher.tracing import traced
    from simulator.offline import offline256

    args.model = args.model or ""
    config = read_shape(args)
    orders = [Order(prompt=job.prompt, max_tokens=job.max_tokens or 0) for job in offline256().fixed[: args.requests]]
    if args.kill_worker:
        return bench_kills.run(args, [replace(order, prompt=order.prompt % config.vocab) for order in orders])
    path = None if args.trace is None else new_file("--trace", args.trace, "a trace")
    with traced(path) as trace, Served(args, config.vocab, trace) as served:
        _say(f"processes ready after {served.start_seconds:.1f} s")
        served.warm()
        settle(served, served.fronts)
        _say("worker warm")
        passes = [_pass(served, orders, number) for number in range(args.runs)]
    counted = passes[1:] or passes
    report = {
        "workload": "served A", "model": args.model_shape or args.model, "vocab": config.vocab, "machine": machine(), "commit": commit(),
        "command": shlex.join(sys.argv), "start_s": round(served.start_seconds, 2), **_median(counted), "passes": passes,
    }  # fmt: skip
    print(json.dumps(report) if args.json else _text(report))
    return 0 if not any(found["errors"] for found in passes) else 1


def _pass(served: Served, orders: Sequence[Order], number: int) -> dict[str, Any]:
    """All prompts at once, first as ids to the scheduler and then over HTTP."""
    from launcher.figures import percentiles
    from launcher.wire_load import Load

    offline = served.play(orders, SamplingParams(temperature=TEMPERATURE))
    _say(f"pass {number}: offline {offline.tokens / offline.seconds:.0f} tok/s")
    load = Load(served.address, [_body(order) for order in orders], LIMIT_SECONDS, served.beat)
    before = served.cpu()
    load.run()
    used = {kind: cpu.since(before[kind]) for kind, cpu in served.cpu().items()}
    _check(load, orders)
    tokens = sum(outcome.tokens for outcome in load.outcomes)
    found: dict[str, Any] = {
        "offline_tok_s": round(offline.tokens / offline.seconds, 1), "tok_s": round(tokens / load.seconds, 1), "seconds": round(load.seconds, 3),
        "offline_ttft_ms": percentiles(offline.first),
        "ttft_ms": percentiles([outcome.first - outcome.sent for outcome in load.outcomes if outcome.first is not None]),
        "inter_token_ms": percentiles([gap for outcome in load.outcomes for gap in outcome.gaps]),
        "errors": dict(Counter(outcome.error for outcome in load.outcomes if outcome.error is not None)),
        "cpu_us_per_token": {kind: round((cpu.user + cpu.system) / max(tokens, 1) * 1e6, 2) for kind, cpu in used.items()},
    }  # fmt: skip
    found["share_of_offline"] = round(found["tok_s"] / found["offline_tok_s"], 4)
    _say(f"pass {number}: {json.dumps(found)}")
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _body(order: Order) -> bytes:
    body = {
        "prompt": order.prompt.tolist(), "max_tokens": order.max_tokens, "temperature": TEMPERATURE, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    return json.dumps(body).encode()


def _check(load: "Load", orders: Sequence[Order]) -> None:
    """Every request must have given what it was asked for."""
    for outcome, order in zip(load.outcomes, orders, strict=True):
        if outcome.error is None and outcome.tokens != order.max_tokens:
            raise LauncherError(f"a request gave {outcome.tokens} tokens instead of {order.max_tokens}")


def _median(passes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the numbers, and of the last pass what is not a number."""
    numbers = {name: statistics.median(found[name] for found in passes) for name, value in passes[-1].items() if isinstance(value, float)}
    return passes[-1] | numbers


def _text(report: dict[str, Any]) -> str:
    def times(name: str) -> str:
        return " / ".join(f"{report[name][f'p{share}']:.1f}" for share in (50, 99)) if report[name] else "-"

    costs = ", ".join(f"{kind} {cost:g}" for kind, cost in report["cpu_us_per_token"].items())
    return (
        f"{report['workload']}, {report['model']}: {report['tok_s']:.0f} tok/s, {report['share_of_offline']:.1%} of the offline "
        f"{report['offline_tok_s']:.0f} in the same run\n"
        f"time to first token p50 / p99 {times('ttft_ms')} ms (offline {times('offline_ttft_ms')}), between tokens {times('inter_token_ms')} ms\n"
        f"CPU time a token, us: {costs}"
    )
