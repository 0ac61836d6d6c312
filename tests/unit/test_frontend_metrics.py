"""The scheduler's numbers under vLLM's metric names."""

import pytest

from frontend.cluster import ClusterView
from frontend.metrics import Metrics, kv_usage
from messages.cluster import READY, ClusterState, ProcessState

GAUGES = {"running": 3.0, "waiting": 2.0, "blocks": 100.0, "blocks_free": 20.0, "blocks_cached": 45.0, "blocks_retiring": 5.0, "blocks_used": 80.0}
COUNTERS = {"prefix_queries": 1000.0, "prefix_hits": 640.0, "preemptions": 7.0, "evicted_blocks": 11.0, "invariant_violations": 1.0}


def scraped(*processes: ProcessState) -> dict[str, float]:
    """Sample name with its labels -> value."""
    view = ClusterView(["tokenizer0"])
    view.update(ClusterState(ready=True, phase=READY, reason="", model="m", started=0.0, processes=list(processes)))
    rows = [line.rsplit(" ", 1) for line in Metrics("m", view).render().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in rows}


def scheduler(gauges: dict[str, float], counters: dict[str, float]) -> ProcessState:
    return ProcessState(name="scheduler", incarnation=1, pid=1, phase=READY, gauges=gauges, counters=counters)


def test_numbers_of_the_scheduler() -> None:
    found = scraped(ProcessState(name="tokenizer0", incarnation=1, pid=1, phase=READY), scheduler(GAUGES, COUNTERS))
    expected = {
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "kv_cache_usage_perc": 0.3,
        "prefix_cache_queries_total": 1000,
        "prefix_cache_hits_total": 640,
        "num_preemptions_total": 7,
    }
    assert {name: found[f'pagewire_{name}{{model_name="m"}}'] for name in expected} == pytest.approx(expected)
    assert found['pagewire_process_count_total{name="evicted_blocks",process="scheduler"}'] == 11
    assert found['pagewire_process_count_total{name="invariant_violations",process="scheduler"}'] == 1
    assert found['pagewire_process_gauge{name="blocks_cached",process="scheduler"}'] == 45


@pytest.mark.parametrize("processes", [[], [scheduler({}, {})]], ids=["no scheduler", "nothing told"])
def test_numbers_are_there_before_the_scheduler_is(processes: list[ProcessState]) -> None:
    found = scraped(*processes)
    for name in ("kv_cache_usage_perc", "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total"):
        assert found[f'pagewire_{name}{{model_name="m"}}'] == 0


@pytest.mark.parametrize(
    ("gauges", "usage"),
    [
        ({"blocks": 10.0, "blocks_free": 10.0}, 0.0),
        ({"blocks": 10.0, "blocks_free": 4.0}, 0.6),
        ({"blocks": 10.0, "blocks_cached": 8.0, "blocks_retiring": 2.0}, 0.0),
        ({"blocks": 10.0, "blocks_free": 9.0, "blocks_cached": 2.0}, 0.0),
        ({}, 0.0),
    ],
)
def test_only_blocks_that_rows_hold_count_as_used(gauges: dict[str, float], usage: float) -> None:
    assert kv_usage(gauges) == pytest.approx(usage)
