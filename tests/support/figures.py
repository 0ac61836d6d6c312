"""The scheduler's own figures as the supervisor publishes them, and what must hold of them when nothing runs."""

import asyncio
import signal
import time
from dataclasses import dataclass

from messages.cluster import ProcessState
from tests.support.cluster import Cluster

IDLE_SECONDS = 45.0
REFRESH_SECONDS = 0.5
"""A report shows the scheduler as it was at most so long before."""
ENDS = ("finished_stop", "finished_length", "cancelled", "errors")
BROKEN = ("errors", "failed_steps", "invariant_violations")


@dataclass(frozen=True)
class Figures:
    """Gauges and counters of one report."""

    gauges: dict[str, float]
    counters: dict[str, float]

    @property
    def idle(self) -> bool:
        """No sequence lives and no plan is in flight."""
        return self.counters["accepted"] == sum(self.counters[name] for name in ENDS) and not any(
            self.gauges[name] for name in ("running", "waiting", "slots_used", "blocks_used", "blocks_retiring")
        )


def busy(cluster: Cluster) -> dict[str, float]:
    """What must be nothing when nobody asks for anything: slots, blocks, sequences."""
    wanted = ("running", "waiting", "slots_used", "blocks_used", "blocks_retiring", "sequences", "preparing", "live")
    return {name: value for process in cluster.state().processes for name, value in process.gauges.items() if name in wanted}


async def scheduler_state(cluster: Cluster) -> ProcessState:
    """The scheduler's last report."""
    state = await asyncio.to_thread(cluster.state)
    return next(process for process in state.processes if process.name == "scheduler")


async def figures(cluster: Cluster) -> Figures:
    """Figures the scheduler took after this call."""
    asked = time.monotonic()
    while True:
        scheduler = await scheduler_state(cluster)
        if time.monotonic() - scheduler.age > asked + REFRESH_SECONDS:
            return Figures(scheduler.gauges, scheduler.counters)
        await asyncio.sleep(0.02)


async def caught(cluster: Cluster, rows: int) -> bool:
    """Stop the worker. True: so many sequences run, and none ends until it goes on. False: there were fewer already, and it goes on."""
    cluster.kill("worker0", signal.SIGSTOP)
    if (await figures(cluster)).gauges["running"] >= rows:
        return True
    cluster.kill("worker0", signal.SIGCONT)
    return False


async def idle_figures(cluster: Cluster) -> Figures:
    """The figures once nothing runs, checked: every block is free or cached, no sequence was lost and no invariant was found broken."""
    async with asyncio.timeout(IDLE_SECONDS):
        while not (found := await figures(cluster)).idle:
            await asyncio.sleep(0.05)
    gauges = found.gauges
    assert gauges["blocks_free"] + gauges["blocks_cached"] == gauges["blocks"], gauges
    assert not any(found.counters[name] for name in BROKEN), found.counters
    return found
