"""The scheduler's numbers under vLLM's metric names."""

import pytest

from frontend.cluster import ClusterView
from frontend.metrics import Metrics, kv_usage
from frontend.shared_metrics import report
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


def test_a_scrape_of_any_of_several_frontends_adds_them_up() -> None:
    view = ClusterView(["tokenizer0"])
    first, second = Metrics("m", view, "frontend0"), Metrics("m", view, "frontend1")
    for metrics, tokens in ((first, 3), (second, 4)):
        metrics.generation_tokens.inc(tokens)
        metrics.inter_token.observe([(0.02, tokens)])
        metrics.finished("stop")
    first.refused(400)
    second.refused(400)
    second.refused(404)
    processes = [
        ProcessState(name=name, incarnation=1, pid=1, phase=READY, counters={"bad_frames": 1.0, **report(metrics.registry)})
        for name, metrics in (("frontend0", first), ("frontend1", second))
    ]
    view.update(ClusterState(ready=True, phase=READY, reason="", model="m", started=0.0, processes=processes))
    for metrics in (first, second):
        lines = [line.rsplit(" ", 1) for line in metrics.render().decode().splitlines() if not line.startswith("#")]
        found = {name: float(value) for name, value in lines}
        assert found['pagewire_generation_tokens_total{model_name="m"}'] == 7
        assert found['pagewire_inter_token_latency_seconds_bucket{le="0.01",model_name="m"}'] == 0
        assert found['pagewire_inter_token_latency_seconds_bucket{le="0.025",model_name="m"}'] == 7
        assert found['pagewire_inter_token_latency_seconds_count{model_name="m"}'] == 7
        assert found['pagewire_inter_token_latency_seconds_sum{model_name="m"}'] == pytest.approx(0.14)
        assert found['pagewire_request_success_total{finished_reason="stop",model_name="m"}'] == 2
        assert found['pagewire_requests_refused_total{model_name="m",status="400"}'] == 2
        assert found['pagewire_requests_refused_total{model_name="m",status="404"}'] == 1
        assert [name for name in found if "process_count" in name and "bad_frames" not in name] == []
        assert len(lines) == len(found)
