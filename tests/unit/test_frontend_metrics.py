"""The numbers of the scheduler and the processes by vLLM's names, and those of several frontends added up."""

from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from frontend import health
from frontend.cluster import ClusterView
from frontend.cluster_metrics import kv_usage
from frontend.errors import ApiError
from frontend.metrics import Metrics
from frontend.shared_metrics import report
from frontend.streams import Group, Run, Sequence
from messages.cluster import DEAD, READY, ClusterState, ProcessState
from messages.request import Generate, TextPrompt
from messages.sampling import SamplingParams, StopRules
from scheduler.step_sizes import StepSizes

GAUGES = {"running": 3.0, "waiting": 2.0, "blocks": 100.0, "blocks_free": 20.0, "blocks_cached": 45.0, "blocks_retiring": 5.0, "blocks_used": 30.0}
COUNTERS = {"prefix_queries": 1000.0, "prefix_hits": 640.0, "preemptions": 7.0, "evicted_blocks": 11.0, "invariant_violations": 1.0}


def view_of(*processes: ProcessState) -> ClusterView:
    view = ClusterView(["tokenizer0"], clock=lambda: 0.0)
    view.update(ClusterState(ready=True, phase=READY, reason="", model="m", started=0.0, processes=list(processes)))
    return view


def samples(metrics: Metrics) -> dict[str, float]:
    """Sample name with its labels -> value, of a scrape that has each once."""
    rows = [line.rsplit(" ", 1) for line in metrics.render().decode().splitlines() if not line.startswith("#")]
    found = {name: float(value) for name, value in rows}
    assert len(found) == len(rows)
    return found


def scraped(*processes: ProcessState) -> dict[str, float]:
    return samples(Metrics("m", view_of(*processes)))


def scheduler(gauges: dict[str, float], counters: dict[str, float], past: dict[str, float] | None = None) -> ProcessState:
    return ProcessState(name="scheduler", incarnation=1, pid=1, phase=READY, gauges=gauges, counters=counters, past=past or {})


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
        ({"blocks": 10.0, "blocks_free": 10.0, "blocks_used": 0.0}, 0.0),
        ({"blocks": 10.0, "blocks_free": 4.0, "blocks_used": 6.0}, 0.6),
        ({"blocks": 10.0, "blocks_cached": 8.0, "blocks_retiring": 1.0, "blocks_used": 1.0}, 0.1),
        ({"blocks": 0.0, "blocks_used": 0.0}, 0.0),
        ({}, 0.0),
    ],
)
def test_only_blocks_that_rows_hold_count_as_used(gauges: dict[str, float], usage: float) -> None:
    assert kv_usage(gauges) == pytest.approx(usage)


def test_the_schedulers_counters_go_on_after_its_death() -> None:
    found = scraped(scheduler({}, {"preemptions": 2.0, "new": 1.0}, past={"preemptions": 5.0, "prefix_hits": 3.0}))
    assert found['pagewire_num_preemptions_total{model_name="m"}'] == 7
    assert found['pagewire_prefix_cache_hits_total{model_name="m"}'] == 3
    assert found['pagewire_process_count_total{name="preemptions",process="scheduler"}'] == 7
    assert found['pagewire_process_count_total{name="new",process="scheduler"}'] == 1


def test_steps_are_a_histogram_of_their_tokens() -> None:
    sizes = StepSizes()
    for tokens in (1, 3, 8, 9, 20_000):
        sizes.add(tokens)
    found = scraped(scheduler({}, {"steps": 5.0, **sizes.counters()}))
    told = [found[f'pagewire_iteration_tokens_total_bucket{{le="{bound}",model_name="m"}}'] for bound in ("1.0", "8.0", "16.0", "16384.0", "+Inf")]
    assert told == [1, 3, 4, 4, 5]
    assert found['pagewire_iteration_tokens_total_count{model_name="m"}'] == 5
    assert found['pagewire_iteration_tokens_total_sum{model_name="m"}'] == 20_021
    assert not [name for name in found if "step_tokens" in name]


def test_every_process_has_its_cpu_time_memory_and_state() -> None:
    worker = ProcessState(name="worker0", incarnation=2, pid=1, phase=DEAD, restarts=1, cpu_seconds=2.5, memory_bytes=1000)
    found = scraped(worker, scheduler({}, {}))
    assert found['pagewire_process_cpu_seconds_total{process="worker0"}'] == 2.5
    assert found['pagewire_process_resident_memory_bytes{process="worker0"}'] == 1000
    assert (found['pagewire_process_up{process="worker0"}'], found['pagewire_process_up{process="scheduler"}']) == (0, 1)
    assert found['pagewire_process_restarts{process="worker0"}'] == 1


def test_sizes_of_the_cache_are_told_once_known() -> None:
    facts: dict[str, int | float | str] = {"context": 2048, "block_size": 16, "blocks": 99, "slots": 4}
    known = ProcessState(name="scheduler", incarnation=1, pid=1, phase=READY, facts=facts)
    assert scraped(known)['pagewire_cache_config_info{block_size="16",blocks="99",context="2048",model_name="m",slots="4"}'] == 1
    assert not [name for name in scraped(scheduler({}, {})) if "cache_config_info" in name]


def accepted(metrics: Metrics, choices: int, prompt_tokens: int = 5) -> Group:
    """A prompt with so many choices that has been accepted."""
    run = Run(None, None)  # type: ignore[arg-type]  # its dispatcher is not asked
    request = Generate(frontend="frontend0", keys=[], seeds=[], prompt=TextPrompt(""), sampling=SamplingParams(), stop=StopRules())
    group = Group(request)
    group.prompt_tokens = prompt_tokens
    group.sequences = [Sequence(key, key, run, group) for key in range(choices)]
    run.groups.append(group)
    metrics.accepted(group)
    return group


def test_a_scrape_of_any_of_several_frontends_adds_them_up() -> None:
    view = view_of()
    first, second = Metrics("m", view, "frontend0"), Metrics("m", view, "frontend1")
    for metrics, tokens in ((first, 3), (second, 4)):
        metrics.generation_tokens.inc(tokens)
        metrics.inter_token.observe([(0.02, tokens)])
        metrics.ended(accepted(metrics, 2).sequences[0], "stop")
    first.refused(400)
    second.refused(400)
    second.refused(404)
    processes = [told(name, metrics) for name, metrics in (("frontend0", first), ("frontend1", second))]
    view.update(ClusterState(ready=True, phase=READY, reason="", model="m", started=0.0, processes=processes))
    for metrics in (first, second):
        found = samples(metrics)
        assert found['pagewire_generation_tokens_total{model_name="m"}'] == 7
        assert found['pagewire_inter_token_latency_seconds_bucket{le="0.01",model_name="m"}'] == 0
        assert found['pagewire_inter_token_latency_seconds_bucket{le="0.025",model_name="m"}'] == 7
        assert found['pagewire_inter_token_latency_seconds_count{model_name="m"}'] == 7
        assert found['pagewire_inter_token_latency_seconds_sum{model_name="m"}'] == pytest.approx(0.14)
        assert found['pagewire_request_success_total{finished_reason="stop",model_name="m"}'] == 2
        assert found['pagewire_sequences_started_total{model_name="m"}'] == 4
        assert found['pagewire_sequences_live{model_name="m"}'] == 2
        assert found['pagewire_sequences_lost_total{model_name="m"}'] == 0
        assert found['pagewire_requests_refused_total{model_name="m",status="400"}'] == 2
        assert found['pagewire_requests_refused_total{model_name="m",status="404"}'] == 1
        assert [name for name in found if "process_count" in name and "bad_frames" not in name] == []
        assert [name for name in found if "process_gauge" in name] == []


def told(name: str, metrics: Metrics, past: dict[str, float] | None = None) -> ProcessState:
    """A frontend as the others hear of it."""
    gauges, counters = report(metrics.registry)
    return ProcessState(
        name=name, incarnation=1, pid=1, phase=READY, gauges=gauges, counters={"bad_frames": 1.0, **counters}, past=past or {},
    )  # fmt: skip


def test_what_a_dead_frontend_counted_stays_and_what_it_had_is_lost() -> None:
    """It is asked itself after its restart, and the other one: they agree, no counter has fallen, and started = ended + live + lost."""
    view = view_of()
    dead, other, again = Metrics("m", view, "frontend0"), Metrics("m", view, "frontend1"), Metrics("m", view, "frontend0")
    dead.ended(accepted(dead, 3).sequences[0], "stop")
    accepted(other, 1)
    past = report(dead.registry)[1]
    processes = [told("frontend0", again, past), told("frontend1", other)]
    view.update(ClusterState(ready=True, phase=READY, reason="", model="m", started=0.0, processes=processes))
    for metrics in (other, again):
        found = samples(metrics)
        names = ("sequences_started_total", "sequences_live", "sequences_lost_total", "prompt_tokens_total", "request_prompt_tokens_count")
        assert [found[f'pagewire_{name}{{model_name="m"}}'] for name in names] == [4, 1, 2, 10, 2]
        assert found['pagewire_request_success_total{finished_reason="stop",model_name="m"}'] == 1
        assert found['pagewire_frontend_live_sequences{model_name="m"}'] == 0


def test_reports_leave_out_what_is_nothing() -> None:
    metrics = Metrics("m", view_of())
    assert report(metrics.registry) == ({}, {})
    accepted(metrics, 1)
    gauges, counters = report(metrics.registry)
    assert list(gauges.values()) == [1]
    assert all(counters.values())


async def test_one_of_several_frontends_says_nothing_before_it_knows_of_the_others() -> None:
    view = ClusterView([])
    core: Any = SimpleNamespace(args=SimpleNamespace(peers=("frontend1",)), view=view, metrics=Metrics("m", view, "frontend0"))
    with pytest.raises(ApiError) as caught:
        await health.metrics(core, make_mocked_request("GET", "/metrics"))
    assert caught.value.status == 503
    view.update(ClusterState(ready=False, phase=READY, reason="", model="m", started=0.0, processes=[]))
    assert (await health.metrics(core, make_mocked_request("GET", "/metrics"))).status == 200


def test_what_was_counted_for_a_model_stays_under_its_name_when_another_one_comes() -> None:
    """The frontend that is asked knows only the new one: it was started again after it came."""
    view = view_of()
    here, there = Metrics("new", view, "frontend0"), Metrics("m", view, "frontend1")
    there.ended(accepted(there, 2).sequences[0], "stop")
    there.inter_token.observe([(0.02, 3)])
    there.requests_live.inc()
    there.serve("new")
    there.serve("new")
    there.requests_live.inc()
    accepted(there, 1)
    there.inter_token.observe([(0.02, 4)])
    view.update(ClusterState(ready=True, phase=READY, reason="", model="new", started=0.0, processes=[told("frontend1", there)]))
    for metrics in (here, there):
        found = samples(metrics)

        def of(name: str, model: str, labels: str = "", found: dict[str, float] = found) -> float | None:
            return found.get(f'pagewire_{name}{{{labels}model_name="{model}"}}')

        assert (of("sequences_started_total", "m"), of("sequences_started_total", "new")) == (2, 1)
        assert (of("inter_token_latency_seconds_count", "m"), of("inter_token_latency_seconds_count", "new")) == (3, 4)
        assert of("inter_token_latency_seconds_bucket", "m", 'le="0.025",') == 3
        assert (of("request_prompt_tokens_sum", "m"), of("request_prompt_tokens_sum", "new")) == (5, 5)
        assert of("request_success_total", "m", 'finished_reason="stop",') == 1
        assert (of("requests_live", "m"), of("requests_live", "new"), of("sequences_live", "new")) == (None, 2, 2)
        assert of("cluster_ready", "new") == 0
