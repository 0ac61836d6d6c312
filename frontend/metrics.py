"""Prometheus metrics in vLLM's shapes under the prefix `pagewire_`, so that dashboards port by renaming.

Counting rules. A *sequence* is one choice. It is started when the tokenizer accepted its prompt and ends exactly once in
`request_success_total{finished_reason}`: stop, length, abort (the client went away) or error. Refused requests are never started and
count in `requests_refused_total` only. A prompt counts once however many choices share it; tokens of aborted sequences count as far as
they arrived. The scheduler's numbers begin again at 0 when it restarts, as Prometheus expects of a counter.
"""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from frontend.cluster import ClusterView
from frontend.histogram import TokenHistogram
from frontend.shared_metrics import MARK, Sum

PREFIX = "pagewire_"
FINISH_REASONS = ("stop", "length", "abort", "error")

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0)
_ITL = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0)
_E2E = (0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)


class Metrics:
    """All numbers of one frontend in `registry`. A scrape has those of the others on its port added, and the cluster's. `name` is its own."""

    def __init__(self, model_name: str, view: ClusterView, name: str = "") -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._model = model_name
        self.received = self._counter("requests_received", "Requests to the generating endpoints.")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of started requests.")
        self.generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self.started = self._counter("sequences_started", "Sequences (choices) whose prompt was accepted.")
        self.first_token = self._histogram("time_to_first_token_seconds", "Seconds to a sequence's first token.", _TTFT)
        self.inter_token = TokenHistogram(PREFIX + "inter_token_latency_seconds", "Seconds between tokens of a sequence.", _ITL, model_name)
        self.registry.register(self.inter_token)
        self.e2e = self._histogram("e2e_request_latency_seconds", "Seconds from arrival to the end of a sequence.", _E2E)
        self.request_prompt = self._histogram("request_prompt_tokens", "Tokens of each started prompt.", _TOKENS)
        self.request_generation = self._histogram("request_generation_tokens", "Generated tokens of each ended sequence.", _TOKENS)
        self._finished = Counter(PREFIX + "request_success", "Ended sequences by reason.", ["model_name", "finished_reason"], registry=self.registry)
        self._finished_by = {reason: self._finished.labels(model_name, reason) for reason in FINISH_REASONS}
        self._refused = Counter(PREFIX + "requests_refused", "Requests answered with an error.", ["model_name", "status"], registry=self.registry)
        self._live = Gauge(PREFIX + "frontend_live_sequences", "Sequences this frontend waits for.", ["model_name"], registry=self.registry)
        self.live = self._live.labels(model_name)
        self._scraped = CollectorRegistry(auto_describe=False)
        self._scraped.register(Sum(self.registry, lambda: [process.counters for process in view.processes if process.name != name]))
        self._scraped.register(ClusterCollector(model_name, view))

    def finished(self, reason: str) -> None:
        self._finished_by.get(reason, self._finished_by["error"]).inc()

    def refused(self, status: int) -> None:
        self._refused.labels(self._model, str(status)).inc()

    def render(self) -> bytes:
        """The text exposition format."""
        return generate_latest(self._scraped)

    def _counter(self, name: str, help_text: str) -> Counter:
        return Counter(PREFIX + name, help_text, ["model_name"], registry=self.registry).labels(self._model)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(PREFIX + name, help_text, ["model_name"], buckets=buckets, registry=self.registry).labels(self._model)


class ClusterCollector(Collector):
    """Reads the cluster state at every scrape: readiness, the scheduler's gauges by vLLM's names, and every process's own numbers."""

    def __init__(self, model_name: str, view: ClusterView) -> None:
        self._model = model_name
        self._view = view

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        yield self._gauge("cluster_ready", "1 when requests are served.", float(self._view.reason() is None))
        yield from self._scheduler()
        yield from self._processes()

    def _scheduler(self) -> Iterable[Metric]:
        scheduler = next((process for process in self._view.processes if process.name == "scheduler"), None)
        gauges = scheduler.gauges if scheduler else {}
        counters = scheduler.counters if scheduler else {}
        yield self._gauge("num_requests_running", "Sequences being computed.", gauges.get("running", 0.0))
        yield self._gauge("num_requests_waiting", "Sequences in the queue.", gauges.get("waiting", 0.0))
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks that running sequences hold, 0 to 1.", kv_usage(gauges))
        yield self._count("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", counters.get("prefix_queries", 0.0))
        yield self._count("prefix_cache_hits", "Prompt tokens found in the prefix cache.", counters.get("prefix_hits", 0.0))
        yield self._count("num_preemptions", "Sequences put back in the queue for want of KV blocks.", counters.get("preemptions", 0.0))

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, help_text, labels=["model_name"])
        family.add_metric([self._model], max(value, 0.0))
        return family

    def _count(self, name: str, help_text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, help_text, labels=["model_name"])
        family.add_metric([self._model], value)
        return family

    def _processes(self) -> Iterable[Metric]:
        restarts = GaugeMetricFamily(PREFIX + "process_restarts", "How often a process was started again.", labels=["process"])
        gauges = GaugeMetricFamily(PREFIX + "process_gauge", "Numbers of a process now.", labels=["process", "name"])
        counters = CounterMetricFamily(PREFIX + "process_count", "Numbers of a process that only rise.", labels=["process", "name"])
        for process in self._view.processes:
            restarts.add_metric([process.name], process.restarts)
            _add(gauges, process.name, process.gauges)
            _add(counters, process.name, process.counters)
        return (restarts, gauges, counters)


def kv_usage(gauges: dict[str, float]) -> float:
    """The share (0 to 1) of all KV blocks that running sequences hold, from the scheduler's gauges.

    Blocks that are only cached can be evicted at once and those that retire are about to be free: neither counts as in use.
    """
    idle = sum(gauges.get(name, 0.0) for name in ("blocks_free", "blocks_cached", "blocks_retiring"))
    return max(0.0, gauges.get("blocks", 0.0) - idle) / max(gauges.get("blocks", 0.0), 1.0)


def _add(family: Any, process: str, numbers: dict[str, float]) -> None:
    for name, value in numbers.items():
        if name.startswith(MARK):
            continue
        family.add_metric([process, name], value)
