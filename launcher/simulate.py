"""`simulate`: the scheduler on a virtual clock, with a workload or a recording; `--replay` and `--fit` of a recording."""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import LauncherError
from launcher.options import number, whole

if TYPE_CHECKING:
    from simulator.cost import CostModel
    from simulator.recorded import Recorded
    from simulator.simulation import Machine, Simulation, Watcher
    from simulator.workload import Workload

COUNT = whole(1, 1_000_000)
TOKENS = whole(1, 2**31 - 1)
QUIET_SECONDS = 1.0
MACHINE = (
    "slots", "blocks", "block_size", "max_step_tokens", "chunk_tokens", "context", "run_ahead", "prefix_cache", "target_itl", "max_queue",
    "max_queue_tokens", "max_live_tokens", "max_queue_seconds",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `simulate`."""
    parser.add_argument("recording", nargs="?", metavar="FILE", help="a recording made with `cluster start --record FILE`")
    parser.add_argument("--workload", choices=["A", "chat", "random"], help="A: 256 at once; chat: users over turns; random: Poisson arrivals")
    parser.add_argument("--cost-model", metavar="FILE", help="how long steps take, as --fit writes it (default: SmolLM2-135M on a 2-core CPU)")
    parser.add_argument("--plot", metavar="FILE", help="write charts over time as one HTML page")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--seed", type=whole(0, 2**31 - 1), default=0, help="of the workloads chat and random (0)")
    recording = parser.add_argument_group("a recording")
    recording.add_argument("--speed", type=number(1e-3, 1e3), default=1.0, metavar="X", help="let its requests arrive X times as fast (1)")
    recording.add_argument("--replay", action="store_true", help="instead check that the scheduler makes the recorded plans again, byte for byte")
    recording.add_argument("--fit", metavar="FILE", help="instead fit a cost model to its step times and write it; - prints it")
    _add_machine(parser.add_argument_group("the simulated worker and scheduler (default: as recorded, else as `cluster start`)"))
    chat = parser.add_argument_group("workload chat")
    chat.add_argument("--users", type=COUNT, default=8, metavar="N", help="people who chat at once (8)")
    chat.add_argument("--turns", type=COUNT, default=6, metavar="N", help="messages each of them sends (6)")
    chat.add_argument("--system-tokens", type=COUNT, default=1000, metavar="N", help="tokens of the system prompt they share (1000)")
    chat.add_argument("--user-tokens", type=COUNT, default=50, metavar="N", help="tokens per message (50)")
    chat.add_argument("--answer-tokens", type=COUNT, default=100, metavar="N", help="tokens per answer (100)")
    chat.add_argument("--think", type=number(0, 86400), default=5.0, metavar="S", help="mean seconds between an answer and the next message (5)")
    load = parser.add_argument_group("workload random")
    load.add_argument("--requests", type=COUNT, default=100, metavar="N", help="how many (100)")
    load.add_argument("--rate", type=number(0, 1e6), default=1.0, metavar="R", help="requests a second; 0: all at once (1)")
    load.add_argument("--prompt-tokens", type=COUNT, default=128, metavar="N", help="tokens per prompt (128)")
    load.add_argument("--max-tokens", type=COUNT, default=128, metavar="N", help="tokens generated per request (128)")


def _add_machine(group: "argparse._ArgumentGroup") -> None:
    add = group.add_argument
    add("--slots", "--max-slots", type=whole(1, 4096), metavar="N", help="sequences computed at once (64)")
    add("--blocks", type=whole(1, 2**24), metavar="N", help="KV blocks (8192)")
    add("--block-size", type=whole(1, 1024), metavar="N", help="tokens per KV block (16)")
    add("--max-step-tokens", type=whole(1, 2**20), metavar="N", help="tokens computed in one step (512)")
    add("--chunk-tokens", type=whole(1, 2**20), metavar="N", help="prompt tokens computed in one step (128)")
    add("--max-context", dest="context", type=whole(2, 2**20), metavar="N", help="longest prompt plus answer (32768)")
    add("--run-ahead", type=whole(1, 8), metavar="N", help="plans in flight at once (2)")
    add("--prefix-cache", choices=["on", "off"], help="whether prompts that begin alike share what was computed (on)")
    add("--target-itl", type=number(0.001, 60_000), metavar="MS", help="cut prompt chunks so that running rows get a token about this often")
    add("--max-queue", type=COUNT, metavar="N", help="requests that may wait (1024)")
    add("--max-queue-tokens", type=TOKENS, metavar="N", help="prompt tokens that may wait (4000000)")
    add("--max-live-tokens", type=whole(0, 2**40), metavar="N", help="tokens that all prompts and answers may come to; 0: any number (0)")
    add("--max-queue-seconds", type=number(0, 86400), metavar="S", help="refuse who would wait longer in line; 0: nobody (0)")


def run(args: argparse.Namespace) -> int:
    """Simulate, replay or fit, and print; 0 when done, 1 when a replay differs. Raises LauncherError."""
    from simulator.errors import SimulatorError

    _check(args)
    try:
        if args.replay:
            return _replay(args)
        return _fit(args) if args.fit is not None else _simulate(args)
    except SimulatorError as error:
        raise LauncherError(str(error)) from error
    except MemoryError as error:
        raise LauncherError("this machine has not enough memory for the simulated one: lower --slots, --max-context or --blocks") from error


def _check(args: argparse.Namespace) -> None:
    if (args.recording is None) == (args.workload is None):
        raise LauncherError("name either a recording (cluster start --record FILE) or a workload (--workload A, chat or random)", 2)
    if args.recording is None and (args.replay or args.fit is not None):
        raise LauncherError(f"{'--replay' if args.replay else '--fit'} needs a recording: simulate FILE, made with cluster start --record FILE", 2)
    read = [Path(file).resolve() for file in (args.recording, args.cost_model) if file is not None]
    for written in (args.fit, args.plot):
        if written is not None and Path(written).resolve() in read:
            raise LauncherError(f"{written} would be overwritten: it is read here; name another file", 2)
    if args.replay and args.fit is not None:
        raise LauncherError("--replay and --fit are two different jobs: leave one of them out", 2)


def _simulate(args: argparse.Namespace) -> int:
    from simulator.cost import DEFAULT, load_cost_model
    from simulator.figures import summarise, table
    from simulator.recorded import read_recording
    from simulator.simulation import Simulation

    cost = load_cost_model(Path(args.cost_model) if args.cost_model is not None else DEFAULT)
    recorded = read_recording(Path(args.recording), args.speed) if args.recording is not None else None
    workload = _workload(args) if recorded is None else recorded.workload
    simulation = Simulation(workload, _machine(args, recorded), cost)
    started = time.perf_counter()
    with _Progress(workload.requests) as watch:
        simulation.run(watch)
    figures = summarise(simulation)
    if args.plot is not None:
        _plot(Path(args.plot), simulation, workload, cost, table(figures))
    if args.json:
        print(json.dumps(_document(simulation, workload, cost) | figures))
        return 0
    print(f"{_title(workload)}\n{_subtitle(simulation, cost)}\n\n{table(figures)}")
    print(f"simulated in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    return 0


def _replay(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from simulator.recorded import replay_recording

    report = replay_recording(Path(args.recording))
    same = report.difference is None
    if args.json:
        print(json.dumps(asdict(report) | {"same": same}))
        return 0 if same else 1
    done = f"{report.plans:,} plans of {report.messages:,} messages and {report.turns:,} turns are the same, byte for byte"
    print(done if same else f"{done}; then: {report.difference}")
    if report.unread:
        print(f"the file ends with {report.unread} bytes of an unfinished frame, as when the process was killed", file=sys.stderr)
    return 0 if same else 1


def _fit(args: argparse.Namespace) -> int:
    from msgspec import json as encoding

    from simulator.cost import save_cost_model
    from simulator.recorded import fit_recording

    model = fit_recording(Path(args.recording))
    if args.fit == "-":
        print(encoding.format(encoding.encode(model), indent=2).decode())
        return 0
    save_cost_model(model, Path(args.fit))
    if args.json:
        print(encoding.encode(model).decode())
        return 0
    print(_fitted(model))
    print(f"wrote {args.fit}; use it with: simulate ... --cost-model {args.fit}", file=sys.stderr)
    return 0


def _fitted(model: "CostModel") -> str:
    step = f"{1000 * model.base:.4g} ms + {1e6 * model.prefill_token:.4g} us a prompt token + {1000 * model.decode_row:.4g} ms a decode row"
    lines = [f"a step takes {step} + {1e9 * model.context_token:.4g} ns a position of KV read"]
    if model.fit is not None:
        fit = model.fit
        lines.append(f"{fit.steps:,} steps took {fit.measured_s:,.3f} s; the model says {fit.predicted_s:,.3f} s")
        lines.append(f"error of a step: median {fit.median_error_ms:.3f} ms, root mean square {fit.residual_ms:.3f} ms; R2 {fit.explained:.4f}")
    return "\n".join(lines)


def _workload(args: argparse.Namespace) -> "Workload":
    from simulator.conversations import Conversations
    from simulator.offline import offline256
    from simulator.random_load import random_load

    if args.workload == "A":
        return offline256()
    if args.workload == "random":
        return random_load(
            requests=args.requests, rate=args.rate, prompt_tokens=args.prompt_tokens, max_tokens=args.max_tokens, seed=args.seed
        )
    return Conversations(
        users=args.users,
        turns=args.turns,
        system_tokens=args.system_tokens,
        user_tokens=args.user_tokens,
        answer_tokens=args.answer_tokens,
        think=args.think,
        seed=args.seed,
    )


def _machine(args: argparse.Namespace, recorded: "Recorded | None") -> "Machine":
    from dataclasses import replace

    from simulator.simulation import Machine

    given: dict[str, Any] = {name: getattr(args, name) for name in MACHINE if getattr(args, name) is not None}
    if "prefix_cache" in given:
        given["prefix_cache"] = given["prefix_cache"] == "on"
    if "target_itl" in given:
        given["target_itl"] /= 1000
    return replace(Machine() if recorded is None else recorded.machine, **given)


def _title(workload: "Workload") -> str:
    return f"workload {workload.name}: {workload.requests:,} requests"


def _subtitle(simulation: "Simulation", cost: "CostModel") -> str:
    machine = simulation.machine
    cache, target = "on" if machine.prefix_cache else "off", "" if machine.target_itl is None else f", target {1000 * machine.target_itl:g} ms"
    return (
        f"{machine.slots} slots, {machine.blocks:,} blocks of {machine.block_size} tokens, steps of {machine.max_step_tokens:,} tokens, "
        f"chunks of {machine.chunk_tokens:,}{target}, run-ahead {machine.run_ahead}, prefix cache {cache}; cost model {cost.name}"
    )


def _document(simulation: "Simulation", workload: "Workload", cost: "CostModel") -> dict[str, Any]:
    from dataclasses import asdict

    import msgspec

    return {"workload": workload.name, "settings": asdict(simulation.machine), "cost_model": msgspec.to_builtins(cost)}


def _plot(path: Path, simulation: "Simulation", workload: "Workload", cost: "CostModel", figures: str) -> None:
    from simulator.plot import page

    _write(path, page(simulation, f"Pagewire simulation, {_title(workload)}", _subtitle(simulation, cost), figures))
    print(f"wrote {path}", file=sys.stderr)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LauncherError(f"cannot write {path}: {error.strerror}; name a file in a folder that exists") from error


class _Progress:
    """Shows how far a simulation is, once it has taken QUIET_SECONDS."""

    def __init__(self, requests: int) -> None:
        from launcher.progress import StatusLine

        self._line, self._requests, self._started = StatusLine(), requests, time.perf_counter()

    def __enter__(self) -> "Watcher":
        return self._watch

    def __exit__(self, *_: object) -> None:
        self._line.clear()

    def _watch(self, ended: int, now: float) -> None:
        if time.perf_counter() - self._started >= QUIET_SECONDS:
            self._line.show(f"{ended:,} of {self._requests:,} requests done, {now:,.1f} s simulated", key=str(10 * ended // self._requests))
