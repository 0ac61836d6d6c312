"""The history of the live page and its lists, as arithmetic."""

import os
import time
from math import inf

import pytest

from frontend.errors import ApiError
from frontend.live.history import KEPT, SERIES, History, percentile
from frontend.live.hub import MOST_OF_A_KEY, MOST_VIEWERS, Hub
from frontend.live.processes import Processes
from messages.cluster import DEAD, READY, ClusterState, ProcessState
from tests.unit.test_frontend_service import make_core


def test_percentiles_lie_within_their_bucket() -> None:
    counts = [(1.0, 0.0), (2.0, 10.0), (4.0, 20.0), (inf, 20.0)]
    assert [percentile(counts, share) for share in (0.25, 0.5, 0.75, 1.0)] == [1.5, 2.0, 3.0, 4.0]
    assert percentile([(1.0, 0.0), (inf, 5.0)], 0.5) == 1.0
    assert percentile([(1.0, 0.0), (inf, 0.0)], 0.5) is None
    assert percentile([], 0.5) is None


def test_rates_are_those_of_the_schedulers_own_seconds() -> None:
    history = History()
    counters = {"seconds": 10.0, "generation_tokens": 100.0, "steps": 10.0, "step_tokens": 300.0, "worker_seconds": 5.0, "plan_seconds": 1.0,
                "prefix_queries": 50.0, "prefix_hits": 0.0}  # fmt: skip
    gauges = {"running": 3.0, "waiting": 1.0, "blocks": 10.0, "blocks_used": 4.0, "blocks_cached": 5.0}
    first = history.add(1.0, gauges, counters, [], [])
    assert (first["running"], first["kv_running"], first["kv_cached"], first.get("generated"), first["first_p50"]) == (3.0, 0.4, 0.5, None, None)
    later = {"seconds": 12.0, "generation_tokens": 140.0, "steps": 20.0, "step_tokens": 400.0, "worker_seconds": 6.5, "plan_seconds": 1.2,
             "prefix_queries": 90.0, "prefix_hits": 10.0}  # fmt: skip
    sample = history.add(2.0, gauges, later, [], [])
    wanted = {"generated": 20.0, "prefilled": 30.0, "batch": 4.0, "worker_busy": 0.75, "idle": 0.25, "planning": 0.1, "hit_rate": 0.25}
    assert {name: sample[name] for name in wanted} == pytest.approx(wanted)
    assert history.add(3.0, gauges, later, [], [])["generated"] == 20.0  # nothing new was reported
    assert "generated" not in history.add(4.0, gauges, {"seconds": 0.5}, [], [])  # another scheduler


def test_what_was_seconds_ago_no_longer_counts_and_old_samples_go() -> None:
    history = History()
    for second in range(KEPT + 5):
        seen = 0.0 if second < 3 else 4.0
        sample = history.add(float(second), {}, {}, [(1.0, seen), (inf, seen)], [])
        assert sample["first_p50"] == (0.5 if 3 <= second <= 12 else None), second
    kept = history.columns()
    assert (len(kept.time), kept.time[0], set(kept.series)) == (KEPT, 5.0, set(SERIES))


def process(pid: int, phase: str = READY, cpu: float = 0.0, age: float = 0.0) -> ProcessState:
    return ProcessState(name="worker0", incarnation=1, pid=pid, phase=phase, cpu_seconds=cpu, age=age)


def state(one: ProcessState) -> ClusterState:
    return ClusterState(ready=True, phase=READY, reason="", model="m", started=0.0, processes=[one])


def test_processes_have_uptimes_and_processor_time() -> None:
    processes = Processes()
    (line,) = processes.lines(state(process(os.getpid())), 10.0)
    assert line.uptime is not None
    assert 0 < line.uptime < time.time()
    assert line.cpu is None
    (line,) = processes.lines(state(process(os.getpid(), cpu=0.5, age=0.5)), 11.5)
    assert line.cpu == pytest.approx(0.5)
    (line,) = processes.lines(state(process(0, phase=DEAD, cpu=0.5)), 12.0)
    assert (line.uptime, line.pid) == (None, None)
    (line,) = processes.lines(state(process(2**22 + 1, cpu=0.1)), 13.0)
    assert (line.uptime, line.cpu) == (None, None)


async def test_pages_are_bounded() -> None:
    """A key has a share of them, and administrators have pages of their own, so that nobody keeps the others out."""
    core = make_core()
    hub = Hub("/nowhere", core.view, core.metrics, core.register)

    def refused(owner: str | None) -> tuple[int, str | None]:
        with pytest.raises(ApiError) as error:
            hub.join(owner)
        return error.value.status, error.value.headers()["Retry-After"]

    viewers = [hub.join("alice") for _ in range(MOST_OF_A_KEY)]
    assert refused("alice") == (429, "10")
    viewers += [hub.join(f"key{number}") for number in range(MOST_VIEWERS - MOST_OF_A_KEY)]
    assert refused("bob") == (503, "10")
    viewers += [hub.join(None) for _ in range(MOST_VIEWERS)]
    assert refused(None) == (503, "10")
    hub.leave(viewers.pop(0))
    viewers.append(hub.join("bob"))
    for viewer in viewers:
        hub.leave(viewer)
    hub.leave(viewers[0])
