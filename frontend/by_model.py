"""Metrics with a label for the model. When another one is served, what was counted stays under the name of the one before."""

from collections.abc import Iterable
from typing import Protocol

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector


class Follower(Protocol):
    """Something that counts for one model at a time."""

    def serve(self, model: str) -> None: ...


class ModelCounter:
    """`family` has one label, the model's."""

    def __init__(self, family: Counter, model: str) -> None:
        self._family = family
        self.serve(model)

    def serve(self, model: str) -> None:
        self._now = self._family.labels(model)

    def inc(self, amount: float = 1.0) -> None:
        self._now.inc(amount)


class ModelHistogram(Collector):
    """As ModelCounter."""

    def __init__(self, family: Histogram, model: str) -> None:
        self._family = family
        self.serve(model)

    def serve(self, model: str) -> None:
        self._now = self._family.labels(model)

    def observe(self, value: float) -> None:
        self._now.observe(value)

    def collect(self) -> Iterable[Metric]:
        """Of all models, as a collector of its own."""
        return self._family.collect()


class ModelGauge:
    """As ModelCounter, but what there is now is there under the new name."""

    def __init__(self, family: Gauge, model: str) -> None:
        self._family = family
        self._model = model
        self._value = 0.0
        self._now = family.labels(model)

    def serve(self, model: str) -> None:
        self._family.remove(self._model)
        self._model, self._now = model, self._family.labels(model)
        self.set(self._value)

    def set(self, value: float) -> None:
        self._value = value
        self._now.set(value)

    def inc(self, amount: float = 1.0) -> None:
        self.set(self._value + amount)

    def dec(self) -> None:
        self.inc(-1.0)
