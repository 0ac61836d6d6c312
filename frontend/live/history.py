"""The last 15 minutes in numbers, one sample a second, from what the processes report anyway."""

import math
from array import array
from collections import deque
from collections.abc import Mapping
from itertools import pairwise

import msgspec

from messages.cluster import STEP_TOKENS

KEPT = 900
WINDOW = 10
"""Samples over which percentiles and hit rates are taken: in one alone there are few tokens and prompts, or none."""
SERIES = (
    "generated", "prefilled", "batch", "running", "waiting", "worker_busy", "planning", "idle", "kv_running", "kv_cached", "hit_rate", "evicted",
    "preempted", "first_p50", "first_p95", "first_p99", "inter_p50", "inter_p95", "inter_p99",
)  # fmt: skip
"""Tokens a second; rows and requests; shares of the time and of the blocks (0 to 1); blocks and preemptions a second; seconds."""

Numbers = Mapping[str, float]
Buckets = list[tuple[float, float]]
"""(upper end, observations up to it since the start), ascending."""
Sample = dict[str, float | None]


class Columns(msgspec.Struct):
    """`time`: UNIX seconds of each sample; `series`: the values of each name of SERIES, None where there was nothing to measure."""

    time: list[float]
    series: dict[str, list[float | None]]


class Ring:
    """The newest KEPT samples. Its memory is taken at the start and does not grow."""

    def __init__(self) -> None:
        self._time = array("d", bytes(8 * KEPT))
        self._series = {name: array("d", bytes(8 * KEPT)) for name in SERIES}
        self._count = 0

    def add(self, time: float, sample: Sample) -> None:
        place = self._count % KEPT
        self._time[place] = time
        for name, column in self._series.items():
            value = sample.get(name)
            column[place] = math.nan if value is None else value
        self._count += 1

    def columns(self) -> Columns:
        """The oldest first."""
        places = [place % KEPT for place in range(max(0, self._count - KEPT), self._count)]
        series = {name: [None if math.isnan(value := column[place]) else value for place in places] for name, column in self._series.items()}
        return Columns(time=[round(self._time[place], 3) for place in places], series=series)


class History:
    """`add` once a second."""

    def __init__(self) -> None:
        self._samples = Ring()
        self._counters: deque[Numbers] = deque(maxlen=WINDOW + 1)
        self._rates: Sample = {}
        self._first: deque[Buckets] = deque(maxlen=WINDOW + 1)
        self._inter: deque[Buckets] = deque(maxlen=WINDOW + 1)

    def add(self, time: float, gauges: Numbers, counters: Numbers, first: Buckets, inter: Buckets) -> Sample:
        """`gauges` and `counters`: the scheduler's; `first` and `inter`: of the seconds to the first token, and between tokens."""
        if not self._counters or counters.get("seconds", 0.0) != self._counters[-1].get("seconds", 0.0):
            before = self._counters[-1] if self._counters else counters
            self._counters.append(counters)
            self._rates = _rates(before, counters) | {"hit_rate": _hit_rate(self._counters[0], counters)}
        blocks = max(gauges.get("blocks", 0.0), 1.0)
        sample: Sample = {
            **self._rates,
            "running": gauges.get("running", 0.0),
            "waiting": gauges.get("waiting", 0.0),
            "kv_running": gauges.get("blocks_used", 0.0) / blocks,
            "kv_cached": gauges.get("blocks_cached", 0.0) / blocks,
            **_percentiles("first", self._first, first),
            **_percentiles("inter", self._inter, inter),
        }
        self._samples.add(time, sample)
        return sample

    def columns(self) -> Columns:
        return self._samples.columns()


def column_of_one(time: float, sample: Sample) -> Columns:
    """As `History.columns` has them, of this sample alone."""
    return Columns(time=[round(time, 3)], series={name: [sample.get(name)] for name in SERIES})


def _rates(before: Numbers, now: Numbers) -> Sample:
    """Of counters, each second of the scheduler's own clock. Nothing for the first ones, and for those of a scheduler that began anew."""
    seconds = now.get("seconds", 0.0) - before.get("seconds", 0.0)
    if seconds <= 0:
        return {}

    def rose(name: str) -> float:
        return max(0.0, now.get(name, 0.0) - before.get(name, 0.0))

    generated, steps = rose("generation_tokens"), rose("steps")
    busy = min(1.0, rose("worker_seconds") / seconds)
    return {
        "generated": generated / seconds,
        "prefilled": max(0.0, rose(STEP_TOKENS) - generated) / seconds,
        "batch": generated / steps if steps else None,
        "worker_busy": busy,
        "planning": min(1.0, rose("plan_seconds") / seconds),
        "idle": 1.0 - busy,
        "evicted": rose("evicted_blocks") / seconds,
        "preempted": rose("preemptions") / seconds,
    }


def _hit_rate(before: Numbers, now: Numbers) -> float | None:
    """Share of the prompt tokens looked up since `before` that were found."""
    looked_up, found = (now.get(name, 0.0) - before.get(name, 0.0) for name in ("prefix_queries", "prefix_hits"))
    return max(0.0, found) / looked_up if looked_up > 0 else None


def _percentiles(name: str, kept: deque[Buckets], now: Buckets) -> Sample:
    kept.append(now)
    before = dict(kept[0])
    counts = [(bound, total - before.get(bound, 0.0)) for bound, total in now]
    return {f"{name}_p{percent}": percentile(counts, percent / 100) for percent in (50, 95, 99)}


def percentile(counts: Buckets, share: float) -> float | None:
    """Within the bucket as if its observations were evenly spread; in the last one, which has no end, its beginning. None without observations."""
    total = counts[-1][1] if counts else 0.0
    if total <= 0:
        return None
    wanted = share * total
    for (low, below), (high, upto) in pairwise([(0.0, 0.0), *counts]):
        if upto >= wanted and upto > below:
            return low if high == float("inf") else low + (high - low) * (wanted - below) / (upto - below)
    return counts[-1][0]
