"""A line chart over time as inline SVG."""

from dataclasses import dataclass
from html import escape
from math import floor, log10

import numpy as np
from numpy.typing import NDArray

WIDTH, HEIGHT = 960, 190
LEFT, RIGHT, TOP, BOTTOM = 56, 10, 12, 24
LINES, TICKS = 4, 8
Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Band:
    """One line: its name, its colour (the name of a CSS variable), and a value per bucket."""

    name: str
    colour: str
    values: Column


def chart(heading: str, edges: Column, bands: list[Band]) -> str:
    """A section with heading, legend and SVG. `edges` (seconds) bound the buckets, one more than there are values."""
    top = _ceiling(max(float(band.values.max()) for band in bands))
    legend = "".join(f'<i style="background:var(--{band.colour})"></i>{escape(band.name)}' for band in bands)
    drawing = "".join([*_grid(top), *_ticks(float(edges[-1])), *(_line(band, top) for band in bands)])
    return (
        f'<section><header class="chart"><h2>{escape(heading)}</h2><span class="legend">{legend}</span></header>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(heading)}">{drawing}</svg></section>\n'
    )


def _ceiling(value: float) -> float:
    """The next round number: 1, 2, 3, 4, 5, 6 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(value))
    return next(step * unit for step in (1, 2, 3, 4, 5, 6, 8, 10) if step * unit >= value * (1 - 1e-9))


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(value, top) / top)


def _grid(top: float) -> list[str]:
    out = []
    for line in range(LINES + 1):
        value = top * line / LINES
        y = _y(value, top)
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_label(value)}</text>')
    return out


def _ticks(seconds: float) -> list[str]:
    step = _ceiling(seconds / TICKS)
    out = []
    for tick in range(int(seconds / step + 1e-9) + 1):
        x = LEFT + (WIDTH - LEFT - RIGHT) * tick * step / seconds
        out.append(f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="{"middle" if tick else "start"}">{_label(tick * step)} s</text>')
    return out


def _label(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _line(band: Band, top: float) -> str:
    """The line and a faint area below it."""
    scale = (WIDTH - LEFT - RIGHT) / band.values.size
    points = [f"{LEFT + (place + 0.5) * scale:.1f},{_y(value, top):.1f}" for place, value in enumerate(band.values.tolist())]
    path = f"M{' L'.join(points)}"
    base = _y(0.0, top)
    area = f"{path} L{points[-1].split(',')[0]},{base:.1f} L{points[0].split(',')[0]},{base:.1f} Z"
    stroke = f"var(--{band.colour})"
    pen = f'fill="none" stroke="{stroke}" stroke-width="1.6" stroke-linejoin="round"'
    return f'<path d="{area}" fill="{stroke}" opacity=".12"/><path d="{path}" {pen}/>'
