"""Ten equal rounds of mixed traffic, with clients that leave: no process takes more after the last than after the first."""

import asyncio
from pathlib import Path

import pytest

from tests.support.cluster import running_cluster
from tests.support.figures import busy
from tests.support.probes import MIB, Take, ends, sample
from tests.support.traffic import Traffic
from tests.support.waiting import until

WARM_UPS, ROUNDS = 10, 10
"""Until a worker has met steps of all sizes, for each of which oneDNN compiles code: 25 MiB, of which most come in the first rounds."""
REQUESTS, AT_ONCE = 60, 8
MOST_DRIFT = 0.02
LITTLE = MIB // 2
"""Two percent of a small process are fewer pages than its allocator takes at a time, and a frontend fills its memory of the last 1,000 requests."""
SPARE_DESCRIPTORS = 4
"""Connections that clients have open, and threads that a pool has not needed before."""
SETTLE_SECONDS = 60.0
CONTEXT = 512


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_nothing_grows_from_round_to_round(models: Path) -> None:
    rounds: list[dict[str, Take]] = []
    with running_cluster(models / "dice-byte", "--max-context", str(CONTEXT), "--kv-tokens", str(8 * CONTEXT)) as cluster:
        for number in range(WARM_UPS + ROUNDS):
            traffic = Traffic(cluster, CONTEXT)
            await traffic.requests(REQUESTS, AT_ONCE)
            assert traffic.wrong == []
            await until(lambda: set(busy(cluster).values()) == {0.0}, SETTLE_SECONDS)
            rounds.append((await asyncio.to_thread(sample, cluster, float(number))).processes)
    counted = rounds[WARM_UPS:]
    print({name: [round(found[name].own / MIB, 2) for found in rounds] for name in rounds[0]})
    for name, first in counted[0].items():
        assert all(found[name].pid == first.pid for found in counted), name
        before, after = ends([found[name].own for found in counted])
        assert after <= before * (1 + MOST_DRIFT) + LITTLE, (name, [found[name].own for found in counted])
        last = counted[-3:]  # one of which has no connections that are just being closed
        assert min(found[name].descriptors for found in last) <= first.descriptors + SPARE_DESCRIPTORS, name
        assert min(found[name].threads for found in last) <= first.threads + SPARE_DESCRIPTORS, name
