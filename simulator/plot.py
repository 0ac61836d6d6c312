"""One self-contained HTML page of a simulation: four charts over virtual time in inline SVG. No script, no network."""

from html import escape

import numpy as np
from numpy.typing import NDArray

from simulator.chart import Band, chart
from simulator.simulation import Simulation

BUCKETS = 480
Column = NDArray[np.float64]

STYLE = """
:root { color-scheme: light dark; --ink: #1d2330; --soft: #667085; --line: #e4e7ec; --ground: #ffffff; --card: #f9fafb;
  --a: #2563eb; --b: #f59e0b; --c: #0d9488; --d: #db2777; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #2b3342; --ground: #11151d; --card: #181e29;
  --a: #6ea8fe; --b: #fbbf24; --c: #2dd4bf; --d: #f472b6; } }
body { margin: 2rem auto; max-width: 66rem; padding: 0 1.25rem; font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); }
h1 { font-size: 1.35rem; margin: 0; } h2 { font-size: .95rem; margin: 0; } p { color: var(--soft); margin: .2rem 0 1rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: .9rem 1rem .4rem; margin: 0 0 1rem; }
header.chart { display: flex; justify-content: space-between; gap: 1rem; flex-wrap: wrap; }
.legend { color: var(--soft); font-size: .85rem; }
.legend i { display: inline-block; width: .7rem; height: .7rem; border-radius: 3px; margin: 0 .35rem 0 .9rem; }
svg { width: 100%; height: auto; display: block; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg .grid { stroke: var(--line); stroke-width: 1; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 1rem; overflow-x: auto;
  font: 13px/1.45 ui-monospace, monospace; }
"""


def page(simulation: Simulation, title: str, subtitle: str, figures: str) -> str:
    """The whole page. `figures` is the table for people, shown as it is."""
    begin, end = simulation.clients.first_sent, max(simulation.now, simulation.clients.first_sent + 1e-9)
    edges = np.linspace(begin, end, BUCKETS + 1)
    charts = [chart(heading, edges - begin, bands) for heading, bands in _bands(simulation, edges)]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n<p>{escape(subtitle)}</p>\n"
        f"{''.join(charts)}<pre>{escape(figures)}</pre>\n</body>\n</html>\n"
    )


def _bands(simulation: Simulation, edges: Column) -> list[tuple[str, list[Band]]]:
    steps, gauges, blocks = simulation.steps.columns(), simulation.gauges.columns(), simulation.machine.blocks
    start, end = steps["start"], steps["start"] + steps["seconds"]
    running, waiting, used, cached = (held(gauges["at"], gauges[name], edges) for name in ("running", "waiting", "blocks_used", "blocks_cached"))
    return [
        ("Sequences", [Band("running", "a", running), Band("waiting", "b", waiting)]),
        (
            "KV memory, % of blocks",
            [Band("held by rows", "a", 100 * used / blocks), Band("held or kept by the prefix cache", "c", 100 * (used + cached) / blocks)],
        ),
        ("Step time, ms", [Band("longest step", "d", longest(start, end, edges))]),
        (
            "Tokens per second",
            [
                Band("prompt, computed", "b", rate(start, end, steps["prefill_tokens"], edges)),
                Band("generated", "a", rate(start, end, steps["sampled"], edges)),
            ],
        ),
    ]


def _bucket(at: Column, edges: Column) -> NDArray[np.int64]:
    return np.clip(np.searchsorted(edges, at, side="right") - 1, 0, edges.size - 2)


def rate(start: Column, end: Column, amount: Column, edges: Column) -> Column:
    """Amount a second in each bucket, of spans that follow each other and are each spread evenly over their time."""
    total = np.cumsum(amount)
    at, so_far = np.stack([start, end], axis=1).reshape(-1), np.stack([total - amount, total], axis=1).reshape(-1)
    return np.diff(np.interp(edges, at, so_far, left=0.0)) / np.diff(edges) if at.size else np.zeros(edges.size - 1)


def longest(start: Column, end: Column, edges: Column) -> Column:
    """Milliseconds of the longest span in each bucket that it touches; 0 where there is none."""
    first = _bucket(start, edges)
    number = _bucket(np.nextafter(end, start), edges) - first + 1
    within = np.arange(number.sum()) - np.repeat(np.cumsum(number) - number, number)
    out = np.zeros(edges.size - 1)
    np.maximum.at(out, np.repeat(first, number) + within, np.repeat(1000 * (end - start), number))
    return out


def held(at: Column, values: Column, edges: Column) -> Column:
    """The mean in each bucket; one without a value keeps the last before it, and 0 before the first."""
    bucket = _bucket(at, edges)
    number = np.bincount(bucket, minlength=edges.size - 1)
    mean = np.bincount(bucket, weights=values, minlength=edges.size - 1) / np.maximum(number, 1)
    last = np.where(number > 0, np.searchsorted(at, edges[1:]) - 1, -1)
    last = np.maximum.accumulate(last)
    return np.where(number > 0, mean, np.where(last < 0, 0.0, values[last]))
