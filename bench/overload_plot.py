"""docs/overload.svg from what `launch.py bench overload --json` printed: goodput and p99 time to the first token over the offered load.

`python -m bench.overload_plot LABEL=FILE [LABEL=FILE ...] > docs/overload.svg`: a line for each file. No library draws it.
"""

import json
import math
import sys
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, GAP = 420, 300, 70
LEFT, TOP, RIGHT, BOTTOM = 62, 62, 16, 52
TICK = 26
"""Pixels between the labels of two loads, at least."""
COLOURS = ("#1f6feb", "#d9480f", "#2b8a3e", "#862e9c")
Run = dict[str, Any]
Scale = Callable[[float], float]
Value = Callable[[Run, float], float | None]


def main(arguments: Sequence[str]) -> str:
    """The drawing of these files."""
    named = [argument.split("=", 1) for argument in arguments]
    reports = [(label, json.loads(Path(file).read_text())) for label, file in named]
    first = reports[0][1]
    title = (
        f"{first['prompt_tokens']} prompt and {first['max_tokens']} new tokens a request, Poisson arrivals; "
        f"capacity {first['capacity']['requests_s']:.1f} requests/s"
    )
    good = f"tokens of requests with a first token within {first['ttft']:g} s"
    panels = [
        _panel(0, "Goodput, % of capacity", good, reports, _goodput, (0, 25, 50, 75, 100)),
        _panel(WIDTH + GAP, "Time to first token, p99, s", "of the requests that were let in", reports, _late, (0.1, 1, 10, 100), log=True),
    ]
    legend = "".join(
        f'<circle cx="{x}" cy="38" r="5" fill="{COLOURS[place]}"/><text x="{x + 10}" y="42">{escape(label)}</text>'
        for place, (x, (label, _)) in enumerate(zip(range(LEFT, 10**4, WIDTH + GAP), reports, strict=False))
    )
    box = f'viewBox="0 0 {2 * WIDTH + GAP} {HEIGHT + TOP}" font-family="sans-serif" font-size="12" fill="#222"'
    head = f'<rect width="100%" height="100%" fill="#fff"/><text x="{LEFT}" y="20" font-size="13">{escape(title)}</text>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{head}{legend}{"".join(panels)}</svg>\n'


def _goodput(run: Run, capacity: float) -> float:
    return 100 * float(run["goodput_tok_s"]) / capacity


def _late(run: Run, capacity: float) -> float | None:
    return None if run["ttft_ms"] is None else float(run["ttft_ms"]["p99"]) / 1000


def _panel(
    x: int, heading: str, small: str, reports: Sequence[tuple[str, Run]], value: Value, marks: Sequence[float], log: bool = False
) -> str:
    """At `x`; `small` stands below the heading, and lines at the `marks`, of which the first is the lowest value."""
    loads = [run["load"] for run in reports[0][1]["runs"]]
    across = _scale(0.0, max(loads), LEFT, WIDTH - RIGHT)
    found = [[(run["load"], y) for run in report["runs"] if (y := value(run, report["capacity"]["tok_s"])) is not None] for _, report in reports]
    top = max([marks[-1], *(y for line in found for _, y in line)])
    low, high = (math.log10(marks[0]), math.log10(top)) if log else (0.0, top)
    flat = _scale(low, high, TOP + HEIGHT - BOTTOM, TOP + 36)

    def up(y: float) -> float:
        return flat(math.log10(max(y, marks[0])) if log else y)

    parts = [f'<text x="{LEFT}" y="{TOP + 8}" font-weight="bold">{escape(heading)}</text>', _small(LEFT, TOP + 22, small, "start")]
    for mark in marks:
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(mark):.1f}" y2="{up(mark):.1f}" stroke="#ddd"/>')
        parts.append(_small(LEFT - 6, up(mark) + 4, f"{mark:g}", "end"))
    free = 0.0
    for load in sorted(loads, reverse=True):  # those that have room, the largest first
        if not free or across(load) < free:
            parts.append(_small(across(load), TOP + HEIGHT - BOTTOM + 16, f"{load:g}", "middle"))
            free = across(load) - TICK
    parts.append(_small((LEFT + WIDTH - RIGHT) / 2, TOP + HEIGHT - BOTTOM + 34, "offered load, multiples of capacity", "middle"))
    for place, line in enumerate(found):
        points = [f"{across(load):.1f},{up(y):.1f}" for load, y in line]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS[place]}" stroke-width="2"/>')
        parts += [f'<circle cx="{point.split(",")[0]}" cy="{point.split(",")[1]}" r="3" fill="{COLOURS[place]}"/>' for point in points]
    return f'<g transform="translate({x} 0)">{"".join(parts)}</g>'


def _scale(low: float, high: float, begin: float, end: float) -> Scale:
    return lambda value: begin + (value - low) / (high - low) * (end - begin)


def _small(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" fill="#555" text-anchor="{anchor}">{escape(text)}</text>'


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]))
