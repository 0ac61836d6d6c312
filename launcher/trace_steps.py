"""The steps of a trace: what each was, and when it was planned, launched, computed and read."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from launcher.errors import LauncherError
from messages.trace import CUT, DECODE, ENDS, LAUNCH, MIXED, PLAN, PREFILL, RESULT, Event

Span = tuple[float, float]
"""Begin and end in microseconds."""
DEVICE = (DECODE, PREFILL, MIXED)


@dataclass
class Step:
    """`device` by the host's clock; `seconds` and the `gap` since the step before, in microseconds, by the device's own."""

    session: int
    number: int
    kind: str = ""
    decode_rows: int = 0
    prefill_tokens: int = 0
    seconds: float = 0.0
    gap: float = 0.0
    plan: Span | None = None
    launch: Span | None = None
    device: Span | None = None
    result: Span | None = None


@dataclass
class TraceSteps:
    """`steps` whose computation is in the trace, in order. `damaged` lines could not be read: the last one, say, of a process that was killed.

    `whole`: it has its end; else the cluster was killed, still runs, or could write no more. `cut`: processes that could not write all of theirs.
    """

    path: str
    events: int = 0
    damaged: int = 0
    processes: list[str] = field(default_factory=list)
    cut: list[str] = field(default_factory=list)
    whole: bool = False
    steps: list[Step] = field(default_factory=list)


def read_steps(path: Path) -> TraceSteps:
    """Raises LauncherError when this is no trace, or one without a step."""
    found = TraceSteps(str(path))
    steps: dict[tuple[int, int], Step] = {}
    decoder = msgspec.json.Decoder(Event)
    try:
        with path.open("rb") as file:
            for line in file:
                if text := line.strip().rstrip(b",").strip(b"[]"):
                    _take(text, decoder, found, steps)
    except OSError as error:
        raise LauncherError(f"{path}: {error.strerror}") from error
    if not found.events:
        raise LauncherError(f"{path} is no trace: make one with cluster start --trace FILE")
    found.steps = sorted((step for step in steps.values() if step.device is not None), key=lambda step: step.device or (0.0, 0.0))
    if not found.steps:
        raise LauncherError(f"{path}: no step was computed while this was traced")
    return found


def _take(text: bytes, decoder: "msgspec.json.Decoder[Event]", found: TraceSteps, steps: dict[tuple[int, int], Step]) -> None:
    try:
        event = decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found.damaged += 1
        return
    found.events += 1
    if event.name == "process_name":
        found.processes.append(str(event.args.get("name", "")))
    elif event.name == CUT:
        found.cut.append(str(event.args.get("name", "")))
    elif event.name == ENDS:
        found.whole = True
    if event.ph == "X" and event.dur is not None and event.bind_id and event.args.keys() >= {"session", "step"}:
        key = int(event.args["session"]), int(event.args["step"])
        _note(steps.setdefault(key, Step(*key)), event, (event.ts, event.ts + event.dur))


def _note(step: Step, event: Event, span: Span) -> None:
    if event.name == PLAN:
        step.plan = span
    elif event.name == LAUNCH:
        step.launch = span
    elif event.name == RESULT:
        step.result = span
    elif event.name in DEVICE:
        args = event.args
        step.kind, step.device = event.name, span
        step.decode_rows, step.prefill_tokens = int(args.get("decode_rows", 0)), int(args.get("prefill_tokens", 0))
        step.seconds, step.gap = float(args.get("device_us", 0.0)), float(args.get("gap_us", 0.0))
