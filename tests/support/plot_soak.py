"""docs/soak.svg from what `python -m tests.support.soak` wrote.

In an environment with the packages of tests/clients/plots.lock: `python tests/support/plot_soak.py soak.json docs/soak.svg`.
"""

import io
import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

MIB = 2**20
MOST_POINTS = 90
COLOURS = {"worker0": "#1f6feb", "tokenizer0": "#d9480f", "scheduler": "#2b8a3e", "frontend0": "#862e9c", "supervisor": "#555555"}
_PATH, _DIGITS = re.compile(r' d="[^"]*"'), re.compile(r"(\.\d)\d+")
"""A tenth of a point is as fine as anybody sees."""
Sample = dict[str, Any]


def main(source: str, target: str) -> None:
    """Four panels over minutes: memory, descriptors, what is held, requests."""
    soak = json.loads(Path(source).read_text())
    samples = soak["samples"][:: max(1, len(soak["samples"]) // MOST_POINTS)]
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "soak", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    (memory, descriptors), (held, requests) = figure.subplots(2, 2, sharex=True)
    minutes = [sample["at"] / 60 for sample in samples]
    _memory(memory, minutes, samples, soak["warm_up"])
    _descriptors(descriptors, minutes, samples)
    _held(held, minutes, samples)
    _requests(requests, minutes, samples)
    for axes in (memory, descriptors, held, requests):
        axes.axvspan(0, soak["warm_up"] / 60, color="#000000", alpha=0.05, linewidth=0)
        axes.grid(alpha=0.25)
        axes.margins(x=0)
    for axes in (held, requests):
        axes.set_xlabel("minutes (grey: warm-up)")
    ended, left = sum(soak["ended"].values()), sum(soak["left"].values())
    figure.suptitle(
        f"{soak['model']}, {soak['clients']} clients, {ended + left:,} requests of {len(soak['ended'])} kinds, "
        f"{left / (ended + left):.0%} of the clients left before the end, {len(soak['wrong'])} wrong answers",
        fontsize=10,
    )
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    Path(target).write_text(_PATH.sub(lambda path: _DIGITS.sub(r"\1", path[0]), drawn.getvalue()))


def _memory(axes: Axes, minutes: Sequence[float], samples: Sequence[Sample], warm_up: float) -> None:
    axes.set_title("Memory of its own, % of the median after the warm-up", fontsize=9)
    for name in samples[0]["processes"]:
        own = [sample["processes"][name]["own"] / MIB for sample in samples]
        usual = statistics.median(size for size, sample in zip(own, samples, strict=True) if sample["at"] >= warm_up)
        axes.plot(minutes, [100 * size / usual for size in own], label=f"{name}, {usual:,.0f} MiB", color=COLOURS.get(name), linewidth=1.2)
    axes.set_ylim(90, 110)
    axes.legend(fontsize=8, loc="upper right", ncols=2)


def _descriptors(axes: Axes, minutes: Sequence[float], samples: Sequence[Sample]) -> None:
    axes.set_title("File descriptors (colours as on the left)", fontsize=9)
    for name in samples[0]["processes"]:
        axes.plot(minutes, [sample["processes"][name]["descriptors"] for sample in samples], label=name, color=COLOURS.get(name), linewidth=1.2)
    axes.set_ylim(bottom=0)


def _held(axes: Axes, minutes: Sequence[float], samples: Sequence[Sample]) -> None:
    axes.set_title("Held by the scheduler", fontsize=9)
    blocks = [sample["gauges"]["scheduler"] for sample in samples]
    axes.plot(minutes, [found["slots_used"] for found in blocks], label="slots in use", linewidth=1.0)
    axes.plot(minutes, [found["waiting"] for found in blocks], label="requests waiting", linewidth=1.0)
    axes.plot(minutes, [found["blocks_used"] for found in blocks], label="KV blocks in use", linewidth=1.0)
    axes.plot(minutes, [found["blocks_cached"] for found in blocks], label="KV blocks cached", linewidth=1.0)
    axes.set_yscale("symlog", linthresh=10)
    axes.set_ylim(0, 50_000)
    axes.legend(fontsize=8, loc="upper right", ncols=2)


def _requests(axes: Axes, minutes: Sequence[float], samples: Sequence[Sample]) -> None:
    axes.set_title("Requests that have ended", fontsize=9)
    axes.plot(minutes, [sample["requests"] for sample in samples], color="#222222", linewidth=1.2)
    axes.set_ylim(bottom=0)


if __name__ == "__main__":
    main(*sys.argv[1:3])
