"""Several frontends on one port as one target of Prometheus: each reports its samples with its heartbeats, and whichever is asked adds them up."""

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

MARK = "sample:"
"""Begins the names of samples among the counters of a heartbeat."""
_CREATED = "_created"

Numbers = Mapping[str, float]


def report(registry: CollectorRegistry) -> dict[str, float]:
    """All samples that can be added up, as counters of a heartbeat."""
    found = (sample for family in registry.collect() for sample in family.samples)
    return {_name(sample): sample.value for sample in found if not sample.name.endswith(_CREATED)}


def _name(sample: Sample) -> str:
    return MARK + msgspec.json.encode([sample.name, sample.labels]).decode()


class Sum(Collector):
    """The samples of `own` with those that `others` gives at each scrape added. Theirs are as old as their last heartbeat."""

    def __init__(self, own: CollectorRegistry, others: Callable[[], Iterable[Numbers]]) -> None:
        self._own = own
        self._others = others

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        theirs: dict[str, float] = {}
        for numbers in self._others():
            for name, value in numbers.items():
                if name.startswith(MARK):
                    theirs[name] = theirs.get(name, 0.0) + value
        for family in self._own.collect():
            family.samples = [sample._replace(value=sample.value + theirs.pop(_name(sample), 0.0)) for sample in family.samples]
            family.samples += _only_theirs(family, theirs)
            yield family


def _only_theirs(family: Metric, theirs: dict[str, float]) -> list[Sample]:
    """Samples of a counter with labels that have not come up here (a status that was never answered)."""
    if family.type != "counter" or not theirs:
        return []
    begin = MARK + msgspec.json.encode([family.name + "_total"]).decode()[:-1] + ","
    names = [name for name in theirs if name.startswith(begin)]
    return [_sample(name, theirs.pop(name)) for name in names]


def _sample(name: str, value: float) -> Sample:
    sample, labels = msgspec.json.decode(name.removeprefix(MARK), type=tuple[str, dict[str, str]])
    return Sample(sample, labels, value)
