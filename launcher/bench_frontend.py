"""`bench frontend`: what the HTTP process costs a streamed token, with a null engine behind it and a cheap client before it."""

import argparse
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from launcher.cpu_time import Cpu
from launcher.errors import LauncherError
from launcher.options import number, whole
from launcher.specs import FRONTENDS, TOKENIZERS, ProcessSpec
from launcher.stand import PUBLISH_SECONDS, Stand
from messages.cluster import LETS_IN

if TYPE_CHECKING:
    from launcher.wire_load import Load

ENGINE = "tokenizer0"
HOST = "127.0.0.1"
MODEL = "null"
MEGABYTE = 1_000_000
MARGIN_SECONDS = 60.0
WARM_TOKENS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `bench frontend`."""
    add = parser.add_argument
    add("--rates", type=_rates, default=[70_000.0, 30_000.0], metavar="R,R", help="tokens a second that the engine gives, a run each (70000,30000)")
    add("--streams", type=whole(1, 4096), default=256, metavar="N", help="connections (256)")
    add("--seconds", type=number(0.1, 600), default=5.0, metavar="S", help="length of a run (5)")
    add("--frontends", type=whole(1, 64), default=1, metavar="N", help="HTTP processes (1)")
    add("--big-prompt", type=number(0, 30), default=20.0, metavar="MB", help="one more run, with a prompt of so many megabytes; 0: none (20)")
    add("--json", action="store_true", help="print one JSON object")


def _rates(text: str) -> list[float]:
    return [number(1, 1e7)(part) for part in text.split(",")]


def others(names: Sequence[str], name: str) -> tuple[str, ...]:
    """All but one."""
    return tuple(other for other in names if other != name)


def settle(stand: Stand, frontends: Sequence[str]) -> None:
    """Wait until those of these names have heard that the cluster is ready."""
    while not all(stand.gauges_of(name).get(LETS_IN) for name in frontends):
        stand.watch(PUBLISH_SECONDS)


class FrontendStand(Stand):
    """Frontends and a null engine."""

    def __init__(self, frontends: int, rate: float) -> None:
        from launcher.start import free_port

        super().__init__()
        self.port = free_port(HOST, 0)
        self.names = [f"frontend{number}" for number in range(frontends)]
        self._rate = rate

    def specs(self) -> Sequence[ProcessSpec]:
        from frontend.args import FrontendArgs
        from launcher.null_engine import NullEngineArgs

        front: dict[str, Any] = {"host": HOST, "port": self.port, "model_name": MODEL, "tokenizers": [ENGINE], "created": 0}
        engine = NullEngineArgs(**self.common(ENGINE), frontends=self.names, rate=self._rate)
        return [
            *(
                ProcessSpec(package="frontend", args=FrontendArgs(**self.common(name), **front, peers=others(self.names, name)), stage=FRONTENDS)
                for name in self.names
            ),
            ProcessSpec(package="launcher.null_engine", args=engine, stage=TOKENIZERS),
        ]


def run(args: argparse.Namespace) -> int:
    """Measure and print; 0 when every request succeeded, else 1."""
    from launcher.machine import commit, machine

    runs = [_measure(args, rate, 0.0) for rate in args.rates]
    if args.big_prompt:
        runs.append(_measure(args, args.rates[-1], args.big_prompt))
    report = {"machine": machine(), "commit": commit(), "command": shlex.join(sys.argv), "streams": args.streams, "runs": runs}
    print(json.dumps(report) if args.json else _text(report))
    return 0 if all(not found["errors"] for found in runs) else 1


def _measure(args: argparse.Namespace, rate: float, megabytes: float) -> dict[str, Any]:
    """One run at `rate`, with a prompt of `megabytes` in its middle."""
    from launcher.wire_load import Load

    tokens = max(2, round(rate * args.seconds / args.streams))
    later = (args.seconds / 3, _body("word " * round(megabytes * MEGABYTE / 5), 2)) if megabytes else None
    with FrontendStand(args.frontends, rate) as stand:
        settle(stand, stand.names)
        address, pids = (HOST, stand.port), ([stand.pid(name) for name in stand.names], [stand.pid(ENGINE)], [os.getpid()])
        Load(address, [_body("x", WARM_TOKENS)] * args.streams, MARGIN_SECONDS, stand.beat).run()
        before = [Cpu.of(group) for group in pids]
        load = Load(address, [_body("x", tokens)] * args.streams, args.seconds * 4 + MARGIN_SECONDS, stand.beat, later)
        load.run()
        used = [Cpu.of(group).since(then) for group, then in zip(pids, before, strict=True)]
    return _figures(rate, megabytes, load, used)


def _body(prompt: str, tokens: int) -> bytes:
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(body).encode()


def _figures(rate: float, megabytes: float, load: "Load", used: list[Cpu]) -> dict[str, Any]:
    """`added_ms`: from the engine to the client. `cpu_us`: of the frontends, a token. `capacity_tok_s`: what one core gives at that cost."""
    from launcher.figures import percentile, percentiles

    front, engine, own = used
    tokens = sum(outcome.tokens for outcome in load.outcomes)
    if not tokens:
        raise LauncherError(f"no request succeeded: {next((outcome.error for outcome in load.outcomes), 'none was sent')}")
    return {
        "rate": rate, "big_prompt_mb": megabytes, "tok_s": round(tokens / load.seconds, 1), "seconds": round(load.seconds, 3), "tokens": tokens,
        "texts_per_token": round(sum(outcome.texts for outcome in load.outcomes) / tokens, 4),
        "errors": dict(Counter(outcome.error for outcome in load.outcomes if outcome.error is not None)),
        "added_ms": percentiles(load.delays), "longest_added_ms": round(max(load.delays) * 1e3, 1),
        "longest_gap_ms": round(max((gap for outcome in load.outcomes for gap in outcome.gaps), default=0.0) * 1e3, 1),
        "ttft_ms": round(percentile([outcome.first - outcome.sent for outcome in load.outcomes if outcome.first is not None], 50) * 1e3, 1),
        "cpu_us": {"user": round(front.user / tokens * 1e6, 2), "system": round(front.system / tokens * 1e6, 2)},
        "capacity_tok_s": round(tokens / (front.user + front.system)),
        "cpu_s": {"frontends": front.total, "engine": engine.total, "client": own.total},
    }  # fmt: skip


def _text(report: dict[str, Any]) -> str:
    from launcher.figures import aligned, milliseconds

    head = ("rate", "tok/s", "events/token", "added p50", "p99", "most", "longest gap", "CPU us/token", "kernel", "tok/s a core", "errors")
    rows = []
    for found in report["runs"]:
        label = f"{found['rate']:g}" + (f" + {found['big_prompt_mb']:g} MB" if found["big_prompt_mb"] else "")
        times = [*milliseconds(found["added_ms"], ["p50", "p99"]), f"{found['longest_added_ms']:.0f}", f"{found['longest_gap_ms']:.0f}"]
        cpu = found["cpu_us"]
        costs = [f"{cpu['user'] + cpu['system']:.2f}", f"{cpu['system']:.2f}", str(found["capacity_tok_s"]), str(sum(found["errors"].values()))]
        rows.append((label, f"{found['tok_s']:.0f}", f"{found['texts_per_token']:.3f}", *times, *costs))
    return "\n".join([f"{report['streams']} connections; times in ms; CPU time of the frontends", aligned([head, *rows])])
