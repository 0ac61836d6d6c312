"""Two HTTP processes on one port, as `cluster start --frontends 2` makes them: to clients they are one server."""

import contextlib
import http.client
import json
import os
import re
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from messages.cluster import READY, STALLED
from tests.support.cluster import Cluster, running_cluster
from tests.support.waiting import wait_until
from tests.system.test_cluster_lifecycle import complete, get

ASKED = 8
"""How often a question is put on a new connection: one in 128 test runs asks a single frontend only."""
LIMIT = 60.0


@contextlib.contextmanager
def stopped(cluster: Cluster, name: str) -> Iterator[None]:
    """While this process is stopped, requests stay where they are."""
    pid = cluster.pid_of(name)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def asked(cluster: Cluster, tokens: int) -> Iterator[http.client.HTTPConnection]:
    """A stream that is asked for, and nothing of it read."""
    body = {"model": cluster.model, "prompt": "A", "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=LIMIT)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        yield connection


def received(cluster: Cluster) -> float:
    """Requests that all frontends together have counted, as a scrape of one of them says."""
    with urllib.request.urlopen(f"{cluster.url}/metrics", timeout=10) as answer:
        found = re.search(rb"^pagewire_requests_received_total\{.*\} ([0-9.]+)$", answer.read(), re.MULTILINE)
    return float(found[1]) if found else -1.0


def running(cluster: Cluster) -> list[dict[str, Any]]:
    data: list[dict[str, Any]] = get(f"{cluster.url}/v1/requests")[1]["data"]
    return data


@pytest.fixture(scope="module")
def two(models: Path) -> Iterator[Cluster]:
    with running_cluster(models / "rand-byte", "--frontends", "2", "--access-log", "-", "--hang-timeout", "0") as cluster:
        yield cluster


def test_two_frontends_share_the_port_the_metrics_and_the_work(two: Cluster) -> None:
    pids = two.pids()
    assert {"frontend0", "frontend1"} < pids.keys()
    texts = {complete(two) for _ in range(12)}
    assert len(texts) == 1
    wait_until(lambda: {received(two) for _ in range(ASKED)} == {12.0})  # once each has heard of the other's
    wait_until(lambda: logged(two) == [200] * 12)  # lines are written a little later
    _one_dies(two, pids["frontend1"], texts)


def logged(cluster: Cluster) -> list[int]:
    """The statuses of completions, of lines that are whole."""
    lines = [json.loads(line) for line in cluster.log().splitlines(keepends=True) if line.startswith("{") and line.endswith("}\n")]
    return [line["status"] for line in lines if line["path"] == "/v1/completions"]


def _one_dies(cluster: Cluster, pid: int, texts: set[str]) -> None:
    """Its requests end with it, wherever they are; those of the other are not touched, and none that comes is refused."""
    with contextlib.ExitStack() as stack:
        with stopped(cluster, "worker0"):
            streams = [stack.enter_context(asked(cluster, 400)) for _ in range(6)]
            wait_until(lambda: gauge(cluster, "frontend0", "live") + gauge(cluster, "frontend1", "live") == len(streams))
            mine = int(gauge(cluster, "frontend0", "live"))
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: sequences(cluster) == gauge(cluster, "tokenizer0", "sequences") == mine)
        while cluster.pids()["frontend1"] in (0, pid) or not cluster.state().ready:
            assert answered(cluster) in texts
        ends = [ending(stream) for stream in streams]
    assert sorted(ends) == [b""] * (len(streams) - mine) + [b"data: [DONE]\n"] * mine
    assert {complete(cluster) for _ in range(4)} == texts


def gauge(cluster: Cluster, name: str, number: str) -> float:
    return next(process.gauges.get(number, -1.0) for process in cluster.state().processes if process.name == name)


def sequences(cluster: Cluster) -> float:
    """That the scheduler has."""
    return gauge(cluster, "scheduler", "running") + gauge(cluster, "scheduler", "waiting")


def answered(cluster: Cluster) -> str:
    """A connection that the dead one had not accepted yet is reset, as by any server; then another is made."""
    with contextlib.suppress(ConnectionError, urllib.error.URLError, http.client.HTTPException):
        return complete(cluster)
    return complete(cluster)


def ending(connection: http.client.HTTPConnection) -> bytes:
    """The last line of a stream that is not empty; nothing when the connection broke."""
    try:
        lines = [line for line in connection.getresponse() if line.strip()]
    except (ConnectionError, http.client.HTTPException):
        return b""
    return b"".join(line for line in lines[-1:] if line == b"data: [DONE]\n")


def test_any_frontend_knows_the_requests_of_all(two: Cluster) -> None:
    with stopped(two, "worker0"), asked(two, 1900) as stream:
        wait_until(lambda: len(running(two)) == 1)
        [name] = {request["id"] for _ in range(ASKED) for request in running(two)}
        url = f"{two.url}/v1/requests/{name}"
        all_say("decode", lambda: get(url)[1]["state"])
        all_say("slot", lambda: get(f"{url}?life=true")[1]["choices"][0]["life"][0]["what"])
        all_say("cancelled", lambda: get(urllib.request.Request(url, method="DELETE"))[1]["state"])
        assert b'"cancelled"' in stream.getresponse().read()
    all_say("cancelled", lambda: get(url)[1]["state"])
    assert running(two) == []
    assert {get(f"{two.url}/v1/requests/nobody")[0] for _ in range(ASKED)} == {404}


def all_say(wanted: str, one: Callable[[], str]) -> None:
    """Soon: where a process is slow to answer another, a frontend says for a moment that it does not know."""

    def said() -> set[str]:
        with contextlib.suppress(KeyError, TypeError):
            return {one() for _ in range(ASKED)}
        return set()

    wait_until(lambda: said() == {wanted}, f"not all say {wanted}")


def test_any_frontend_cancels_the_requests_of_all_once(two: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(stopped(two, "worker0"))
        streams = [stack.enter_context(asked(two, 1900)) for _ in range(ASKED)]
        wait_until(lambda: len(running(two)) == ASKED)
        answers = [get(urllib.request.Request(f"{two.url}/v1/requests", method="DELETE"))[1] for _ in range(2)]
        if not any(answer["unanswered"] for answer in answers):  # a frontend that stands still for seconds ends its own without saying so in time
            assert [answer["cancelled"] for answer in answers] == [ASKED, 0]
        assert all(b'"cancelled"' in stream.getresponse().read() for stream in streams)


def test_one_that_hangs_stops_no_request_of_the_others(two: Cluster) -> None:
    """Connections that the kernel gives to it wait until it goes on; none is refused."""
    expected, pid = complete(two), two.pid_of("frontend1")
    with ThreadPoolExecutor(4 * ASKED) as pool:
        os.kill(pid, signal.SIGSTOP)
        try:
            wait_until(lambda: phase(two, "frontend1") == STALLED)
            answers = [pool.submit(complete, two) for _ in range(4 * ASKED)]
            answered = wait(answers, timeout=30, return_when=FIRST_COMPLETED).done
            assert {future.result() for future in answered} == {expected}
            assert phase(two, "frontend1") == STALLED
        finally:
            os.kill(pid, signal.SIGCONT)
        assert {future.result() for future in answers} == {expected}
    wait_until(lambda: phase(two, "frontend1") == READY)


def phase(cluster: Cluster, name: str) -> str:
    return next(process.phase for process in cluster.state().processes if process.name == name)
