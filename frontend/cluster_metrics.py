"""What the other processes of the cluster told, read at every scrape: the scheduler's numbers by vLLM's names, and every process's own."""

from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from frontend.cluster import ClusterView
from frontend.metric_names import PREFIX, Served
from frontend.version import VERSION
from messages.cluster import READY, SAMPLE, STEP_TOKENS, STEP_TOKENS_LE

_CACHE_FACTS = ("block_size", "blocks", "context", "slots")

Numbers = Mapping[str, float]


class ClusterCollector(Collector):
    """The scheduler's counters go on from where they were when it died, or when another model came, whose name they have then."""

    def __init__(self, served: Served, view: ClusterView) -> None:
        self._served = served
        self._view = view

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        yield self._gauge("cluster_ready", "1 when requests are served.", float(self._view.reason() is None))
        yield self._info("build_info", "The version that runs.", {"version": VERSION})
        yield from self._scheduler()
        yield from self._processes()

    def _scheduler(self) -> Iterable[Metric]:
        scheduler = self._view.scheduler
        gauges: Numbers = scheduler.gauges if scheduler else {}
        counters = scheduler.lifetime() if scheduler else {}
        yield self._gauge("num_requests_running", "Sequences being computed.", gauges.get("running", 0.0))
        yield self._gauge("num_requests_waiting", "Sequences in the queue.", gauges.get("waiting", 0.0))
        yield self._gauge("kv_cache_usage_perc", "Share of KV blocks that running sequences hold, 0 to 1.", kv_usage(gauges))
        yield self._count("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", counters.get("prefix_queries", 0.0))
        yield self._count("prefix_cache_hits", "Prompt tokens found in the prefix cache.", counters.get("prefix_hits", 0.0))
        yield self._count("num_preemptions", "Sequences put back in the queue for want of KV blocks.", counters.get("preemptions", 0.0))
        yield self._steps(counters)
        if scheduler is not None and scheduler.facts:
            facts = {name: str(scheduler.facts.get(name, "")) for name in _CACHE_FACTS}
            yield self._info("cache_config_info", "Sizes of the KV memory: tokens in a block, blocks, tokens of a context, sequences.", facts)

    def _steps(self, counters: Numbers) -> Metric:
        bounds = sorted(int(name.removeprefix(STEP_TOKENS_LE)) for name in counters if name.startswith(STEP_TOKENS_LE))
        buckets = [(f"{bound:.1f}", counters[f"{STEP_TOKENS_LE}{bound}"]) for bound in bounds]
        buckets.append(("+Inf", counters.get("steps", 0.0)))
        family = HistogramMetricFamily(PREFIX + "iteration_tokens_total", "Tokens computed in each step.", labels=["model_name"])
        family.add_metric([self._served.model], buckets, counters.get(STEP_TOKENS, 0.0))
        return family

    def _info(self, name: str, help_text: str, labels: dict[str, str]) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, help_text, labels=["model_name", *labels])
        family.add_metric([self._served.model, *labels.values()], 1.0)
        return family

    def _gauge(self, name: str, help_text: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, help_text, labels=["model_name"])
        family.add_metric([self._served.model], max(value, 0.0))
        return family

    def _count(self, name: str, help_text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, help_text, labels=["model_name"])
        family.add_metric([self._served.model], value)
        return family

    def _processes(self) -> Iterable[Metric]:
        up = GaugeMetricFamily(PREFIX + "process_up", "1 when a process is ready.", labels=["process"])
        restarts = GaugeMetricFamily(PREFIX + "process_restarts", "How often a process was started again.", labels=["process"])
        cpu = CounterMetricFamily(PREFIX + "process_cpu_seconds", "CPU time of a process.", labels=["process"])
        memory = GaugeMetricFamily(PREFIX + "process_resident_memory_bytes", "Memory of a process.", labels=["process"])
        gauges = GaugeMetricFamily(PREFIX + "process_gauge", "Numbers of a process now.", labels=["process", "name"])
        counters = CounterMetricFamily(PREFIX + "process_count", "Numbers of a process that only rise.", labels=["process", "name"])
        for process in self._view.processes:
            up.add_metric([process.name], float(process.phase == READY))
            restarts.add_metric([process.name], process.restarts)
            cpu.add_metric([process.name], process.cpu_seconds)
            memory.add_metric([process.name], process.memory_bytes)
            _add(gauges, process.name, process.gauges)
            _add(counters, process.name, process.lifetime())
        return (up, restarts, cpu, memory, gauges, counters)


def kv_usage(gauges: Numbers) -> float:
    """The share (0 to 1) of all KV blocks that running sequences hold, from the scheduler's gauges.

    Blocks that are only cached can be evicted at once and those that retire are about to be free: neither counts as used.
    """
    return gauges.get("blocks_used", 0.0) / max(gauges.get("blocks", 0.0), 1.0)


def _add(family: Any, process: str, numbers: Numbers) -> None:
    for name, value in numbers.items():
        if not name.startswith((STEP_TOKENS, SAMPLE)):
            family.add_metric([process, name], value)
