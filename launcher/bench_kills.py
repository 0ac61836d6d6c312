"""`bench serve --workload A --kill-worker KILL,...`: a whole cluster whose worker is killed while it answers, and what that costs.

Workload A is played over HTTP twice: undisturbed, and with the kills, each after an equal share of the tokens. Every answer must be whole: the
number of tokens that was asked for, each of them once.
"""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from launcher.bench import KILLS
from launcher.bench_served import LIMIT_SECONDS, TEMPERATURE
from launcher.cold import ColdCluster
from launcher.load import Outcome
from launcher.pair import Order
from launcher.recovery import Watch, back, stages
from launcher.wire_load import Load, events_of

SETTLE_SECONDS = 0.5
"""Every process looks at what the supervisor publishes five times a second."""
LOGGED = (" worker0 ", " died ", " hangs")
PASSED_ON = (
    "device", "dtype", "kv_dtype", "weights", "threads", "kv_tokens", "gpu_memory_utilization", "max_slots", "max_step_tokens", "chunk_tokens",
    "max_context", "run_ahead", "frontends", "tokenizers",
)  # fmt: skip
"""Arguments of `cluster start` of the same name."""


@dataclass
class Kill:
    """One death: how, when (time.perf_counter), and of which incarnation."""

    how: str
    at: float
    incarnation: int


@dataclass
class Killer:
    """Its `tick` kills the worker of `watch` by each of `ways`, when equal shares of `expected` texts have come and it serves."""

    watch: Watch
    ways: Sequence[str]
    expected: int
    load: Load | None = None
    done: list[Kill] = field(default_factory=list)

    def tick(self) -> None:
        worker, number = self.watch.worker, len(self.done)
        if self.load is None or worker is None or number == len(self.ways) or not self.watch.attached or not self._recovered():
            return
        if sum(outcome.texts for outcome in self.load.outcomes) >= self.expected * (number + 1) / (len(self.ways) + 1):
            os.kill(worker.pid, KILLS[self.ways[number]])
            self.done.append(Kill(self.ways[number], time.perf_counter(), worker.incarnation))

    def _recovered(self) -> bool:
        worker = self.watch.worker
        return not self.done or (worker is not None and worker.incarnation > self.done[-1].incarnation)


def run(args: argparse.Namespace, orders: Sequence[Order]) -> int:
    """Measure and print; 0 when every answer was whole and the worker came back each time, else 1. Raises LauncherError."""
    from launcher.machine import commit, machine

    with ColdCluster(_arguments(args)) as cluster:
        began = time.perf_counter()
        place, watch = urlsplit(cluster.url), Watch(cluster.folder)
        try:
            cluster.wait(lambda: _warm(watch))
            time.sleep(SETTLE_SECONDS)
            _say(f"ready and warm after {time.perf_counter() - began:.1f} s")
            address = place.hostname or "", place.port or 0
            expected = sum(order.max_tokens for order in orders)
            plain, texts = _play(address, orders, Killer(watch, (), expected))
            _say(f"undisturbed: {expected / plain.seconds:.0f} tok/s")
            killer = Killer(watch, args.kill_worker, expected)
            load, again = _play(address, orders, killer)
        finally:
            watch.close()
        log = [line for line in cluster.log().splitlines() if any(mark in line for mark in LOGGED)]
    deaths = [_death(kill, watch, load.outcomes) for kill in killer.done]
    report = {
        "workload": "served A, worker killed", "model": args.model_shape or args.model, "machine": machine(), "commit": commit(),
        "command": shlex.join(sys.argv), "requests": len(orders), "tokens": expected, "undisturbed_s": round(plain.seconds, 2),
        "seconds": round(load.seconds, 2), "kills": deaths, "faults": _faults(plain, texts, orders) + _faults(load, again, orders),
        "same_tokens": sum(one == other for one, other in zip(texts, again, strict=True)), "log": log,
    }  # fmt: skip
    print(json.dumps(report) if args.json else _text(report))
    missing = len(killer.done) < len(args.kill_worker) or any(death["lost_s"] is None for death in deaths)
    return 1 if report["faults"] or missing else 0


def _arguments(args: argparse.Namespace) -> list[str]:
    """Of `cluster start`."""
    given = {name: getattr(args, name) for name in PASSED_ON if getattr(args, name) is not None}
    model = ["--model-shape", args.model_shape, "--dummy-weights"] if args.model_shape else ["--model", args.model]
    flags = ["--deterministic"] if args.deterministic else []
    return [*model, *flags, *(part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", str(value)))]


def _warm(watch: Watch) -> bool:
    """All serve, and the worker has made ready for all sizes of steps."""
    worker = watch.worker
    return watch.state is not None and watch.state.ready and worker is not None and worker.gauges.get("warming", 1.0) == 0


def _play(address: tuple[str, int], orders: Sequence[Order], killer: Killer) -> tuple[Load, list[list[int]]]:
    """All prompts at once; the load, and the token ids of each answer."""
    load = Load(address, [_body(order, number) for number, order in enumerate(orders)], LIMIT_SECONDS, killer.tick, keep=True)
    killer.load = load
    load.run()
    return load, [_ids(parts) for parts in load.kept]


def _body(order: Order, number: int) -> bytes:
    body = {
        "prompt": order.prompt.tolist(), "max_tokens": order.max_tokens, "temperature": TEMPERATURE, "seed": number, "ignore_eos": True,
        "stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True,
    }  # fmt: skip
    return json.dumps(body).encode()


def _ids(parts: list[bytes]) -> list[int]:
    return [token for event in events_of(b"".join(parts)) for choice in event.get("choices", ()) for token in choice.get("token_ids") or ()]


def _faults(load: Load, answers: Sequence[list[int]], orders: Sequence[Order]) -> list[str]:
    found = []
    for number, (outcome, ids, order) in enumerate(zip(load.outcomes, answers, orders, strict=True)):
        if outcome.error is not None:
            found.append(f"request {number} failed: {outcome.error}")
        elif not len(ids) == outcome.tokens == order.max_tokens:
            found.append(f"request {number} gave {len(ids)} tokens and counted {outcome.tokens} instead of {order.max_tokens}")
    return found


def _death(kill: Kill, watch: Watch, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """`lost_s`: from the death to the first token after it, `all_s`: until every stream that was cut goes on again."""
    at, parts = back(watch.moments, kill.incarnation), stages(watch.moments, kill.incarnation, kill.at)
    firsts = [] if at is None else [first for outcome in outcomes if (first := _next_text(outcome, at)) is not None]
    if at is None or parts is None or not firsts:
        return {"how": kill.how, "lost_s": None, "all_s": None, "stages": {}}
    parts["first token"] = min(firsts) - at
    return {
        "how": kill.how, "lost_s": round(min(firsts) - kill.at, 3), "all_s": round(max(firsts) - kill.at, 3),
        "stages": {name: round(seconds, 3) for name, seconds in parts.items()},
    }  # fmt: skip


def _next_text(outcome: Outcome, after: float) -> float | None:
    """When the first text after a moment came; None for an answer that had ended before."""
    if outcome.first is None:
        return None
    now = outcome.first
    for gap in outcome.gaps:
        if now > after:
            break
        now += gap
    return now if now > after else None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _text(report: dict[str, Any]) -> str:
    lines = [
        f"{report['workload']}, {report['model']}: {report['requests']} requests with {report['tokens']} tokens in {report['seconds']} s, "
        f"undisturbed {report['undisturbed_s']} s; {len(report['faults'])} faults; {report['same_tokens']} answers with the same tokens"
    ]
    for death in report["kills"]:
        parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in death["stages"].items())
        lines.append(f"{death['how']}: first token after {death['lost_s']} s, all streams after {death['all_s']} s ({parts})")
    return "\n".join([*lines, *report["faults"]])
