"""Two HTTP processes on one port, as `cluster start --frontends 2` makes them."""

import os
import re
import signal
import time
import urllib.request
from pathlib import Path

from tests.support.cluster import Cluster, running_cluster
from tests.system.test_cluster_lifecycle import complete, wait_until


def received(cluster: Cluster) -> float:
    """Requests that all frontends together have counted, as a scrape of one of them says."""
    with urllib.request.urlopen(f"{cluster.url}/metrics", timeout=10) as answer:
        found = re.search(rb"^pagewire_requests_received_total\{.*\} ([0-9.]+)$", answer.read(), re.MULTILINE)
    return float(found[1]) if found else -1.0


def test_two_frontends_share_the_port_the_metrics_and_the_work(models: Path) -> None:
    with running_cluster(models / "rand-byte", "--frontends", "2", "--threads", "1") as cluster:
        pids = cluster.pids()
        assert {"frontend0", "frontend1"} < pids.keys()
        texts = {complete(cluster) for _ in range(12)}
        assert len(texts) == 1
        time.sleep(1.2)  # longer than a heartbeat and a turn of the feed
        assert {received(cluster) for _ in range(8)} == {12.0}
        os.kill(pids["frontend1"], signal.SIGKILL)
        wait_until(lambda: cluster.pids()["frontend1"] not in (0, pids["frontend1"]) and cluster.state().ready)
        wait_until(lambda: all(complete(cluster) in texts for _ in range(4)))
