"""Two HTTP processes on one port, as `cluster start --frontends 2` makes them: to clients they are one server."""

import json
import os
import re
import signal
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster, running_cluster
from tests.system.test_cluster_lifecycle import client_stream, complete, get, wait_until

ASKED = 8
"""How often a question is put on a new connection: one in 128 test runs asks a single frontend only."""


def received(cluster: Cluster) -> float:
    """Requests that all frontends together have counted, as a scrape of one of them says."""
    with urllib.request.urlopen(f"{cluster.url}/metrics", timeout=10) as answer:
        found = re.search(rb"^pagewire_requests_received_total\{.*\} ([0-9.]+)$", answer.read(), re.MULTILINE)
    return float(found[1]) if found else -1.0


def running(cluster: Cluster) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = get(f"{cluster.url}/v1/requests")[1]["data"]
    return data


def test_two_frontends_share_the_port_the_metrics_and_the_work(models: Path) -> None:
    with running_cluster(models / "rand-byte", "--frontends", "2", "--threads", "1", "--access-log", "-") as cluster:
        pids = cluster.pids()
        assert {"frontend0", "frontend1"} < pids.keys()
        texts = {complete(cluster) for _ in range(12)}
        assert len(texts) == 1
        time.sleep(1.2)  # longer than a heartbeat and a turn of the feed
        assert {received(cluster) for _ in range(ASKED)} == {12.0}
        lines = [json.loads(line) for line in cluster.log().splitlines() if line.startswith("{")]
        assert [line["status"] for line in lines if line["path"] == "/v1/completions"] == [200] * 12
        os.kill(pids["frontend1"], signal.SIGKILL)
        wait_until(lambda: cluster.pids()["frontend1"] not in (0, pids["frontend1"]) and cluster.state().ready)
        wait_until(lambda: all(complete(cluster) in texts for _ in range(4)))


def test_any_frontend_knows_the_requests_of_all(models: Path) -> None:
    with running_cluster(models / "rand-byte", "--frontends", "2", "--threads", "1") as cluster:
        with client_stream(cluster, 1900) as answer:
            name = running(cluster)[0]["id"]
            url = f"{cluster.url}/v1/requests/{name}"
            assert {request["id"] for _ in range(ASKED) for request in running(cluster)} == {name}
            assert {get(url)[1]["state"] for _ in range(ASKED)} == {"decode"}
            cancelled = [get(urllib.request.Request(url, method="DELETE")) for _ in range(ASKED)]
            assert {(status, card["state"]) for status, card in cancelled} == {(200, "cancelled")}
            assert b'"cancelled"' in answer.read()
        assert {get(url)[1]["state"] for _ in range(ASKED)} == {"cancelled"}
        assert running(cluster) == []
        assert {get(f"{cluster.url}/v1/requests/nobody")[0] for _ in range(ASKED)} == {404}
