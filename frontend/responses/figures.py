"""What is kept and what the journal does, for Prometheus."""

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from frontend.metric_names import PREFIX, Served
from frontend.responses.desk import Desk


class DeskCollector(Collector):
    """The figures of `desk`; where there is a journal those of it too, which are 0 in frontends that are not its keeper."""

    def __init__(self, desk: Desk, served: Served) -> None:
        self._desk = desk
        self._served = served

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        for kind, name, text, value in self._figures():
            family = kind(PREFIX + name, text, labels=["model_name"])
            family.add_metric([self._served.model], value)
            yield family

    def _figures(self) -> Iterator[tuple[type[CounterMetricFamily] | type[GaugeMetricFamily], str, str, float]]:
        store, journal = self._desk.store, self._desk.journal
        yield GaugeMetricFamily, "responses_background", "Responses that wait or run in the background.", len(store.running)
        yield GaugeMetricFamily, "responses_background_bytes", "Memory that their events and texts take, about.", store.held_bytes
        yield GaugeMetricFamily, "responses_kept", "Responses that have ended and are kept.", store.ended
        yield GaugeMetricFamily, "responses_kept_bytes", "Memory that they take, about.", store.ended_bytes
        if self._desk.keeper:
            size, failures, damaged = (0, 0, 0) if journal is None else (journal.size, journal.failures, journal.damaged)
            yield GaugeMetricFamily, "journal_bytes", "Bytes of the journal's file.", size
            yield CounterMetricFamily, "journal_failures", "Times that the journal could not be written.", failures
            yield CounterMetricFamily, "journal_damaged_records", "Records that could not be read at the start.", damaged
