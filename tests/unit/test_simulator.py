"""The simulator against arithmetic: cases whose times can be worked out by hand."""

import json
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest

from messages.sampling import SamplingParams
from simulator.conversations import Conversations
from simulator.cost import CostModel
from simulator.errors import SimulatorError
from simulator.figures import summarise, table
from simulator.offline import SHA256, offline256
from simulator.plot import held, longest, page, rate
from simulator.random_load import random_load
from simulator.simulation import Machine, Simulation
from simulator.workload import Choice, FixedWorkload, Job, Workload

STEP = 0.01


def cost(**changes: float) -> CostModel:
    values: dict[str, Any] = {"name": "test", "base": STEP} | changes
    return CostModel(**values)


def simulate(workload: Workload, machine: Machine | None = None, model: CostModel | None = None) -> Simulation:
    simulation = Simulation(workload, machine or Machine(), model or cost())
    simulation.run()
    simulation.engine.check()
    return simulation


def figures(workload: Workload, machine: Machine | None = None, model: CostModel | None = None) -> dict[str, Any]:
    return summarise(simulate(workload, machine, model))


def requests(number: int, prompt: int = 100, answer: int = 50, apart: float = 0.0) -> FixedWorkload:
    rng = np.random.default_rng(1)
    jobs = [Job(at=place * apart, prompt=rng.integers(0, 900, prompt, dtype=np.int32), max_tokens=answer) for place in range(number)]
    return FixedWorkload(name="test", fixed=jobs, vocab=900)


def test_one_request_at_constant_cost() -> None:
    found = figures(requests(1))
    assert found["ttft_ms"]["p50"] == found["itl_ms"]["p50"] == found["itl_ms"]["p99"] == 10.0
    assert found["makespan_s"] == 0.5
    assert (found["steps"], found["generated_tokens"], found["computed_tokens"]) == (50, 50, 100)
    assert (found["generated_tok_s"], found["prompt_tok_s"], found["busy"]) == (100.0, 200.0, 1.0)
    assert found["rows_per_step"]["max"] == 1


def test_every_term_of_the_cost_counts() -> None:
    found = figures(requests(1, prompt=100, answer=3), model=cost(base=0.001, prefill_token=0.0001, decode_row=0.002, context_token=0.00001))
    assert found["ttft_ms"]["mean"] == pytest.approx(1 + 10 + 1)
    assert found["itl_ms"]["mean"] == pytest.approx(1 + 2 + (1.01 + 1.02) / 2, abs=1e-3)


def test_logprobs_of_prompts_are_not_asked_for() -> None:
    rng = np.random.default_rng(1)
    job = Job(at=0.0, prompt=rng.integers(0, 900, 100, dtype=np.int32), max_tokens=5, sampling=SamplingParams(prompt_logprobs=1))
    found = figures(FixedWorkload(name="test", fixed=[job], vocab=900))
    assert (found["finished"], found["generated_tokens"]) == (1, 5)


def test_a_prompt_goes_in_chunks() -> None:
    assert figures(requests(1, prompt=600), Machine(chunk_tokens=256))["ttft_ms"]["p50"] == 30.0
    assert figures(requests(1, prompt=600), Machine(chunk_tokens=512))["ttft_ms"]["p50"] == 20.0


@pytest.mark.parametrize(("run_ahead", "period"), [(1, 0.014), (2, 0.01), (3, 0.01)])
def test_run_ahead_hides_the_way_to_the_worker(run_ahead: int, period: float) -> None:
    found = figures(requests(1), Machine(run_ahead=run_ahead), cost(latency=0.002))
    assert found["itl_ms"]["p50"] == pytest.approx(1000 * period)
    assert found["ttft_ms"]["p50"] == pytest.approx(14.0)


def test_one_slot_serves_one_after_the_other() -> None:
    found = figures(requests(3), Machine(slots=1, run_ahead=1))
    assert found["makespan_s"] == pytest.approx(1.5)
    assert found["ttft_ms"]["max"] == pytest.approx(1010.0)
    assert found["waiting"]["max"] == 2


def test_rows_share_a_step() -> None:
    found = figures(requests(8, prompt=10))
    assert (found["makespan_s"], found["rows_per_step"]["max"]) == (0.5, 8)
    assert found["generated_tok_s"] == 800.0


def test_a_full_queue_refuses() -> None:
    found = figures(requests(6), Machine(slots=1, max_queue=2))
    assert found["refused"]["429"] == 6 - found["finished"]
    assert 2 <= found["finished"] <= 3
    assert "refused with 429" in table(found)


def test_a_row_ends_at_its_end_token_and_a_client_may_leave() -> None:
    choices = (Choice(stops_after=7), Choice(leaves_after=5), Choice(leaves_after=0, patience=0.055), Choice(leaves_after=3, stop_string=True))
    job = Job(at=1.0, prompt=np.arange(20, dtype=np.int32), max_tokens=30, choices=choices)
    simulation = simulate(FixedWorkload(name="test", fixed=[job], vocab=100))
    counts = simulation.engine.tally.counts
    assert (counts["finished_stop"], counts["finished_length"], counts["cancelled"]) == (2, 0, 2)
    assert summarise(simulation)["makespan_s"] == pytest.approx(counts["steps"] * STEP, abs=3 * STEP)


def test_more_than_the_memory_holds_is_served_all_the_same() -> None:
    found = figures(requests(20, prompt=60, answer=100), Machine(blocks=40, context=640))
    assert found["finished"] == 20
    assert found["generated_tokens"] == 2000
    assert 0.5 < found["kv_use"]["max"] <= 1.0


def test_workload_a_is_the_published_one() -> None:
    workload = offline256()
    assert SHA256 == "4805cfc27eefe48fed5b600ffb988e2062a56d6a47627274d913b45c60e99590"
    assert sum(job.prompt.size for job in workload.fixed) == 142_827
    assert sum(job.max_tokens or 0 for job in workload.fixed) == 133_966


def test_workload_a_runs() -> None:
    found = figures(offline256(), Machine(slots=256, max_step_tokens=4096, chunk_tokens=2048, blocks=40_000))
    assert (found["finished"], found["prompt_tokens"], found["generated_tokens"]) == (256, 142_827, 133_966)
    assert found["makespan_s"] == pytest.approx(STEP * found["steps"])
    assert found["rows_per_step"]["max"] == 256


CHAT = Conversations(users=4, turns=3, system_tokens=320, user_tokens=32, answer_tokens=16, think=1.0, seed=3)


def test_a_chat_finds_what_it_computed_before() -> None:
    model = cost(prefill_token=0.001)
    on, off = figures(CHAT, model=model), figures(CHAT, Machine(prefix_cache=False), model)
    assert (on["requests"], on["finished"]) == (off["requests"], off["finished"]) == (12, 12)
    assert off["computed_tokens"] == off["prompt_tokens"] == sum(320 + turn * 32 + (turn - 1) * 16 for turn in (1, 2, 3)) * 4
    assert on["hit_rate"] > 0.7 > off["hit_rate"] == 0.0
    assert on["computed_tokens"] < 0.3 * off["computed_tokens"]
    assert on["ttft_ms"]["mean"] < 0.5 * off["ttft_ms"]["mean"]


@pytest.mark.parametrize("workload", [CHAT, random_load(requests=30, rate=20.0, prompt_tokens=40, max_tokens=20, seed=5)], ids=["chat", "random"])
def test_the_same_input_gives_the_same_numbers(workload: Workload) -> None:
    assert json.dumps(figures(workload)) == json.dumps(figures(workload))


def test_random_load_depends_on_its_seed_and_rate() -> None:
    first, second = (random_load(requests=200, rate=10.0, prompt_tokens=5, max_tokens=5, seed=seed) for seed in (1, 2))
    assert first.fixed[-1].at != second.fixed[-1].at
    assert 10 < first.fixed[-1].at < 30
    assert {job.at for job in random_load(requests=5, rate=0.0, prompt_tokens=5, max_tokens=5, seed=0).fixed} == {0.0}


def test_an_empty_workload_is_an_error() -> None:
    with pytest.raises(SimulatorError, match="no requests"):
        simulate(FixedWorkload(name="test", fixed=[], vocab=10))


def test_progress_is_told() -> None:
    told: list[tuple[int, float]] = []
    simulation = Simulation(requests(10, answer=500, apart=3.0), Machine(), cost())
    simulation.run(lambda ended, now: told.append((ended, now)))
    assert told == sorted(told)
    assert len(told) >= 10


def test_the_page_is_one_well_formed_file_without_scripts() -> None:
    simulation = simulate(CHAT)
    text = page(simulation, "A <title>", "sub & title", table(summarise(simulation)))
    assert text.count("<svg") == 4
    assert "&lt;title&gt;" in text
    assert not [word for word in ("<script", "http:", "https:", "nan", "NaN") if word in text]
    body = text[text.index("<body>") : text.index("</html>")]
    ElementTree.fromstring(body)


def test_buckets() -> None:
    edges = np.asarray([0.0, 1.0, 2.0, 3.0, 4.0])
    assert held(np.asarray([1.0, 1.5, 4.0]), np.asarray([2.0, 4.0, 5.0]), edges).tolist() == [0.0, 3.0, 4.0, 5.0]
    start, end = np.asarray([1.0, 1.25, 2.5]), np.asarray([1.25, 2.0, 4.0])
    assert longest(start, end, edges).tolist() == [0.0, 750.0, 1500.0, 1500.0]
    assert rate(start, end, np.asarray([10.0, 30.0, 60.0]), edges).tolist() == [0.0, 40.0, 20.0, 40.0]
    assert rate(np.empty(0), np.empty(0), np.empty(0), edges).tolist() == [0.0] * 4
