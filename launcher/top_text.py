"""The screen of `top` as lines of text."""

import base64
from array import array
from time import localtime, strftime
from typing import Any

Json = dict[str, Any]
Told = dict[str, Any]
"""The newest event of each name, as frontend.live.frames has them."""

PHASES = ("free", "prefill", "decode", "paused")
REASONS = {
    "turn": "others before it", "slot": "a free slot", "blocks": "KV blocks", "tokens": "room in a step", "prefix": "its prefix",
    "worker": "the worker",
}  # fmt: skip
_TYPES = {"slot": "i", "phase": "B", "prompt": "i", "length": "i", "limit": "i", "cached": "i", "preemptions": "i", "age": "f"}
ROWS_HEAD = f"{'SLOT':>5}  {'PHASE':<8}{'AGE':>9}{'PROMPT':>9}{'CACHED':>9}{'OUTPUT':>9}{'LIMIT':>9}{'PREEMPTED':>11}"
LINE_HEAD = f"{'PLACE':>5}  {'WAITS FOR':<18}{'WAITED':>9}{'PROMPT':>9}{'START':>14}{'FIRST TOKEN':>14}"
BAR = 40
FEWEST_ROWS, FEWEST_LINE = 3, 2


def screen(told: Told, width: int, height: int) -> list[str]:
    """At most `height` lines of at most `width` characters. `told` has at least a scene."""
    scene = told["scene"]
    sample = {name: values[-1] for name, values in told.get("sample", {"series": {}})["series"].items()}
    head = [*_summary(_model(told), scene, sample), "", *_processes(told.get("processes", {"processes": []})["processes"])]
    room = max(FEWEST_ROWS + FEWEST_LINE, height - len(head) - 4)
    line = _line(scene)
    shown = min(len(line), max(FEWEST_LINE, room // 3))
    rows = _rows(scene)
    lines = [*head, "", ROWS_HEAD, *_cut(rows, room - shown)]
    if line:
        lines += ["", LINE_HEAD, *_cut(line, shown)]
    return [text[:width].rstrip() for text in lines[:height]]


def column(text: str, code: str) -> "array[Any]":
    """A column of an event: base64 of packed little-endian values."""
    return array(code, base64.b64decode(text))


def _cut(lines: list[str], most: int) -> list[str]:
    return lines if len(lines) <= most else [*lines[: most - 1], f"{'':>5}  and {len(lines) - most + 1} more"]


def _model(told: Told) -> str:
    """What is served now: it may be another one than when the stream began."""
    return str(told.get("processes", {}).get("model") or told.get("hello", {}).get("model", ""))


def _summary(model: str, scene: Json, sample: Json) -> list[str]:
    running = len(column(scene["rows"]["slot"], "i"))
    used, cached = sample.get("kv_running") or 0.0, sample.get("kv_cached") or 0.0
    bar = ("#" * round(used * BAR) + "=" * round(cached * BAR))[:BAR].ljust(BAR, ".")
    return [
        f"{model}  {time_of(scene['time'])}",
        f"{_number(sample.get('generated'))} tokens/s generated, {_number(sample.get('prefilled'))} of prompts   "
        f"running {running} of {scene['slots']}, waiting {scene['waiting']} ({scene['waiting_tokens']} tokens)",
        f"first token {seconds(sample.get('first_p50'))} (p95 {seconds(sample.get('first_p95'))})   "
        f"between tokens {seconds(sample.get('inter_p50'))} (p95 {seconds(sample.get('inter_p95'))})   "
        f"worker busy {share(sample.get('worker_busy'))}, planning {share(sample.get('planning'))}",
        f"KV [{bar}] {share(used)} running, {share(cached)} cached of {scene['blocks']} blocks of {scene['block_size']} tokens   "
        f"cache hits {share(sample.get('hit_rate'))}   preempted {_number(sample.get('preempted'))}/s",
    ]


def _processes(lines: list[Json]) -> list[str]:
    return [
        f"{one['name']:<12} {one['phase']:<9}{'pid ' + str(one['pid']) if one['pid'] else '':<12} up {seconds(one['uptime']):<13}"
        f"restarts {one['restarts']:<4} CPU {share(one['cpu']):<6} memory {one['memory'] / 2**20:.0f} MiB  {one['detail']}"
        for one in lines
    ]


def _rows(scene: Json) -> list[str]:
    rows = {name: column(scene["rows"][name], code) for name, code in _TYPES.items()}
    return [
        f"{rows['slot'][at]:>5}  {PHASES[rows['phase'][at]]:<8}{seconds(rows['age'][at]):>9}{rows['prompt'][at]:>9}{rows['cached'][at]:>9}"
        f"{rows['length'][at] - rows['prompt'][at]:>9}{rows['limit'][at] - rows['prompt'][at]:>9}{rows['preemptions'][at]:>11}"
        for at in range(len(rows["slot"]))
    ]


def _line(scene: Json) -> list[str]:
    waited = column(scene["waited"], "f")
    return [
        f"{one['place']:>5}  {REASONS.get(one['waits_for'], one['waits_for']):<18}{seconds(waited[at]):>9}{one['prompt_tokens']:>9}"
        f"{_expected(one.get('start_seconds')):>14}{_expected(one.get('first_token_seconds')):>14}"
        for at, one in enumerate(scene["line"])
    ]


def _expected(value: float | None) -> str:
    return "-" if value is None else f"in {seconds(value)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.0f} %"


def seconds(value: float | None) -> str:
    """'850 us', '12 ms', '3.4 s', '5 min 3 s', '2 h 10 min'."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1e6:.0f} us" if value < 1e-3 else f"{value * 1e3:.0f} ms"
    if value < 60:
        return f"{value:.1f} s"
    whole = int(value)
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def time_of(unix: float) -> str:
    return strftime("%H:%M:%S", localtime(unix))
