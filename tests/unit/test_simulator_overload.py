"""Goodput under overload, with the real scheduler on a virtual clock: what is refused at the door keeps the rest in time."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from simulator.cost import DEFAULT, load_cost_model
from simulator.random_load import random_load
from simulator.simulation import Machine, Simulation
from simulator.trace import joined
from simulator.workload import Choice, FixedWorkload

SECONDS = 60.0
TTFT_SECONDS = 5.0
PROMPT, ANSWER = 64, 40
MACHINE = Machine(slots=16, blocks=1000, context=512)
SHEDDING = replace(MACHINE, max_queue_seconds=3.0)
TIGHT = replace(SHEDDING, blocks=70)


def load(rate: float, spread: bool) -> FixedWorkload:
    """SECONDS of Poisson arrivals of `rate` a second. With `spread` answers end anywhere up to twice as late as without."""
    workload = random_load(requests=int(rate * SECONDS), rate=rate, prompt_tokens=PROMPT, max_tokens=2 * ANSWER if spread else ANSWER, seed=7)
    if not spread:
        return workload
    chance = Random(3)
    return replace(workload, fixed=[replace(job, choices=(Choice(stops_after=chance.randint(1, 2 * ANSWER)),)) for job in workload.fixed])


def run(workload: FixedWorkload, machine: Machine) -> Simulation:
    simulation = Simulation(workload, machine, load_cost_model(DEFAULT))
    simulation.run()
    simulation.engine.check()
    return simulation


def capacity(spread: bool, machine: Machine) -> float:
    """Requests a second when there are always more."""
    jobs = load(4.0, spread)
    simulation = run(replace(jobs, fixed=[replace(job, at=0.0) for job in jobs.fixed]), replace(machine, max_queue_seconds=0.0))
    return simulation.clients.sent / simulation.now


def goodput(simulation: Simulation) -> float:
    """Requests a second whose first token came in time."""
    return float((joined(simulation.clients.latencies.ttft) <= TTFT_SECONDS).sum()) / simulation.now


@pytest.mark.parametrize(("machine", "spread"), [(SHEDDING, False), (TIGHT, True)], ids=["slots", "blocks"])
def test_goodput_at_three_times_the_capacity(machine: Machine, spread: bool) -> None:
    """At least 90 % of that at capacity, whether slots or memory run out first, without preempting rows again and again.

    With `spread` answers have all lengths, and memory is short.
    """
    most = capacity(spread, machine)
    half, at_capacity, over = (run(load(share * most, spread), machine) for share in (0.5, 1.0, 3.0))
    assert half.engine.tally.counts["refused"] == 0
    assert goodput(over) >= 0.9 * goodput(at_capacity)
    assert goodput(over) >= 0.8 * most
    assert np.percentile(joined(over.clients.latencies.ttft), 90) <= TTFT_SECONDS
    counts = over.engine.tally.counts
    assert counts["refused"] == counts["refused_slow"] > 0.5 * over.clients.sent
    assert counts["preemptions"] <= 0.1 * counts["accepted"]


def test_without_it_nobody_is_served_in_time() -> None:
    most = capacity(False, MACHINE)
    assert goodput(run(load(3.0 * most, False), MACHINE)) < 0.3 * most
