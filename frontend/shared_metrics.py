"""Several frontends on one port as one target of Prometheus: each reports its samples with its heartbeats, and whichever is asked adds them up.

What an incarnation counted before it died stays in the sums; its gauges do not.
"""

from collections.abc import Iterable, Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from frontend.cluster import ClusterView
from frontend.metric_names import PREFIX, Served
from messages.cluster import SAMPLE

_CREATED = "_created"
"""Ends the names of times, of which several frontends have several: they are left out."""

_ENDS = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
"""Of the names of samples, by what they are of."""

Numbers = Mapping[str, float]


def report(registry: CollectorRegistry) -> tuple[dict[str, float], dict[str, float]]:
    """All samples that are not 0, as gauges and as counters of a heartbeat."""
    gauges: dict[str, float] = {}
    counters: dict[str, float] = {}
    for family in registry.collect():
        into = gauges if family.type == "gauge" else counters
        into.update({_name(sample): sample.value for sample in _told(family) if sample.value})
    return gauges, counters


def _told(family: Metric) -> Iterator[Sample]:
    return (sample for sample in family.samples if not sample.name.endswith(_CREATED))


def _name(sample: Sample) -> str:
    return SAMPLE + msgspec.json.encode([sample.name, sample.labels]).decode()


class Sum(Collector):
    """The samples of `own`, which is that of the frontend `name`, with those of all others added, which are as old as their last heartbeat."""

    def __init__(self, own: CollectorRegistry, view: ClusterView, name: str) -> None:
        self._own = own
        self._view = view
        self._name = name

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        theirs = _added(self._others())
        for family in self._own.collect():
            family.samples = [sample._replace(value=sample.value + theirs.pop(_name(sample), 0.0)) for sample in _told(family)]
            family.samples += _only_theirs(family, theirs)
            yield family

    def _others(self) -> Iterator[Numbers]:
        for process in self._view.processes:
            yield process.past
            if process.name != self._name:
                yield process.counters
                yield process.gauges


class LostSequences(Collector):
    """Sequences that neither live nor have ended: those of frontends that died. `started` and `ended`: the counters to compare."""

    def __init__(self, view: ClusterView, served: Served, started: str, ended: str) -> None:
        self._view = view
        self._served = served
        self._begins = [_begin(name) for name in (started, ended)]

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        past = _added(process.past for process in self._view.processes)
        started, ended = (sum(value for name, value in past.items() if name.startswith(begin)) for begin in self._begins)
        family = CounterMetricFamily(PREFIX + "sequences_lost", "Accepted sequences whose frontend died.", labels=["model_name"])
        family.add_metric([self._served.model], started - ended)
        yield family


def _added(numbers: Iterable[Numbers]) -> dict[str, float]:
    """The samples among them."""
    total: dict[str, float] = {}
    for each in numbers:
        for name, value in each.items():
            if name.startswith(SAMPLE):
                total[name] = total.get(name, 0.0) + value
    return total


def _only_theirs(family: Metric, theirs: dict[str, float]) -> list[Sample]:
    """Samples with labels that have not come up here (a status that was never answered, a model that was served before this process began)."""
    if family.type not in _ENDS or not theirs:
        return []
    begins = tuple(_begin(family.name, end) for end in _ENDS[family.type])
    names = [name for name in theirs if name.startswith(begins)]
    return [_sample(name, theirs.pop(name)) for name in names]


def _begin(family: str, end: str = "_total") -> str:
    """How the names of these samples of a family begin, whatever their labels are."""
    return SAMPLE + msgspec.json.encode([family + end]).decode()[:-1] + ","


def _sample(name: str, value: float) -> Sample:
    sample, labels = msgspec.json.decode(name.removeprefix(SAMPLE), type=tuple[str, dict[str, str]])
    return Sample(sample, labels, value)
