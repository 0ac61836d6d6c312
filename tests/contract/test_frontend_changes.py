"""The frontend alone over its real sockets: what it does while the cluster drains, while another model comes, and when it alone is to leave."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from messages.change import LOADING, Change
from messages.cluster import BEGUN, CHANGING, DRAINING, INTAKE, OPEN, ClusterState, ProcessReport
from messages.request import Cancel, Delivered, Generate
from messages.text import Ended, Started, TextDelta
from tests.support.frontend_peers import FRONTEND, MODEL, OTHER, TIMEOUT, Frontend, Peers, cluster_state, running, say, silent

PATH = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "A"}]}


def state(intake: int = 0, incarnation: int = 1, **fields: Any) -> ClusterState:
    return msgspec.structs.replace(cluster_state(incarnation=incarnation), intake=intake, **fields)


def told(frontend: Frontend, peers: Peers, number: int, **gauges: float) -> None:
    """Until it has said that it follows `number`, and has so many requests."""
    wanted, limit = {INTAKE: float(number), **gauges}, time.monotonic() + TIMEOUT
    while not wanted.items() <= peers.reports.get(timeout=max(0.01, limit - time.monotonic())).gauges.items():
        pass


@contextmanager
def stream(frontend: Frontend, **more: Any) -> Iterator[socket.socket]:
    with frontend.open(PATH, {**BODY, "stream": True, **more}) as connection:
        yield connection


def rest(connection: socket.socket, end: bytes = b"[DONE]") -> bytes:
    data = b""
    while end not in data:
        got = connection.recv(65536)
        if not got:
            break
        data += got
    return data


def models(answer: bytes) -> set[str]:
    lines = [line for line in answer.splitlines() if line.startswith(b"data: {")]
    return {json.loads(line[6:])["model"] for line in lines}


def test_a_drain_finishes_what_there_is_and_refuses_the_rest(run_dir: Path) -> None:
    with running(run_dir) as (frontend, peers):
        peers.script = silent
        with stream(frontend) as begun, stream(frontend) as queued:
            first, second = peers.expect(Generate), peers.expect(Generate)
            peers.send(Started(first.keys[0], 1))
            peers.send(TextDelta(first.keys[0], "a", [7]))
            peers.state = state(1, ready=False, phase=DRAINING, reason=DRAINING, draining=True)
            told(frontend, peers, 1, **{OPEN: 2.0, BEGUN: 1.0})
            status, headers, answer = frontend.post(PATH, BODY)
            assert (status, headers["retry-after"], answer["error"]["code"]) == (503, "5", "draining")
            for path, expected in (("/health/ready", 503), ("/health/live", 200), ("/health/startup", 200)):
                assert frontend.get(path)[0] == expected
            ready = json.loads(frontend.get("/health/ready")[2])
            assert (ready["accepting"], ready["error"]["code"], ready["reason"].partition(":")[0]) == (False, "draining", "draining")
            for message in (first, second):
                peers.send(Started(message.keys[0], 1))
                peers.send(Ended(key=message.keys[0], finish="stop", text="b", tokens=1, ids=[8], completion_tokens=1))
            assert b'"content":"b"' in rest(begun)
            assert b'"content":"b"' in rest(queued)
        told(frontend, peers, 1, **{OPEN: 0.0, BEGUN: 0.0})
        peers.state, peers.script = state(2), say("Hello")
        frontend.wait(200)
        assert frontend.post(PATH, BODY)[0] == 200


def test_another_model_comes_with_another_name(run_dir: Path) -> None:
    """What has begun ends on the old one, what waits goes to the new one, and every answer names the model that it is of."""
    change = Change(number=1, kind="reload", phase=LOADING, model="new")
    with running(run_dir) as (frontend, peers):
        peers.script = silent
        with stream(frontend) as begun, stream(frontend) as queued, stream(frontend, model=MODEL) as named:
            first, second, third = (peers.expect(Generate) for _ in range(3))
            for message in (first, second, third):
                peers.send(Started(message.keys[0], 1))
            peers.send(TextDelta(first.keys[0], "a", [7]))
            rest(begun, b'"content":"a"')
            rest(queued, b"event-stream")  # headers are out
            rest(named, b"event-stream")
            peers.state = state(1, ready=False, phase=CHANGING, reason="", holding=True, change=change)
            told(frontend, peers, 1, **{OPEN: 3.0, BEGUN: 1.0})
            assert {key for _ in range(2) for key in peers.expect(Cancel).keys} == {second.keys[0], third.keys[0]}
            assert json.loads(frontend.get("/health/ready")[2])["accepting"]
            assert frontend.post(PATH, {**BODY, "model": "other"})[0] == 404
            answers: list[tuple[int, Any]] = []
            arrived = threading.Thread(target=lambda: answers.append(frontend.post(PATH, {**BODY, "model": "new"})[::2]))
            arrived.start()
            told(frontend, peers, 1, **{OPEN: 4.0})
            peers.send(Ended(key=first.keys[0], finish="stop", text="b", tokens=1, ids=[8], completion_tokens=2))
            assert models(rest(begun)) == {MODEL}
            told(frontend, peers, 1, **{BEGUN: 0.0})
            assert [card["id"] for card in json.loads(frontend.get("/v1/models")[2])["data"]] == [MODEL]
            peers.script = say("new", "er")
            peers.state = state(2, 2, serving=1, model="new", created=7)
            again = [peers.expect(Generate) for _ in range(2)]
            assert sorted(len(message.resumed) for message in again) == [0, 1]
            assert [message.resumed for message in again if message.resumed] == [[Delivered(b"")]]
            answer = rest(queued)
            assert (models(answer), answer.count(b'"role":"assistant"')) == ({"new"}, 1)
            assert b"model_not_found" in rest(named)
            arrived.join(TIMEOUT)
            ((status, body),) = answers
            assert (status, body["model"], body["choices"][0]["message"]["content"]) == (200, "new", "newer")
        card = json.loads(frontend.get("/v1/models")[2])["data"][0]
        assert (card["id"], card["created"]) == ("new", 7)
        assert frontend.post(PATH, {**BODY, "model": MODEL})[2]["error"]["code"] == "model_not_found"
        ended = [frontend.metric("request_success_total", model_name=name, finished_reason="stop") for name in (MODEL, "new")]
        assert ended == [1, 2]
        assert frontend.metric("sequences_started_total") == 3
        assert frontend.metric("generation_tokens_total", model_name=MODEL) == 2
        assert frontend.metric("build_info", model_name="new") == 1
        assert (frontend.metric("sequences_live"), frontend.metric("requests_live"), frontend.metric("frontend_live_sequences")) == (0, 0, 0)


def test_one_that_alone_is_to_leave_serves_to_the_end(run_dir: Path) -> None:
    with running(run_dir) as (frontend, peers):
        peers.script = silent
        with stream(frontend) as begun:
            key = peers.expect(Generate).keys[0]
            kept = frontend.connection()
            kept.request("GET", "/version")
            kept.getresponse().read()
            leaving = cluster_state()
            me = msgspec.structs.replace(leaving.processes[0], name=FRONTEND, leave_seconds=30.0)
            peers.state = msgspec.structs.replace(leaving, intake=3, processes=[*leaving.processes, me])
            told(frontend, peers, 3, **{OPEN: 1.0})
            frontend.process.send_signal(signal.SIGTERM)
            while peers.reports.get(timeout=TIMEOUT).phase != "stopping":
                pass
            peers.script = say("late")
            kept.request("POST", PATH, json.dumps(BODY).encode())
            response = kept.getresponse()
            assert (response.status, response.getheader("Connection")) == (200, "close")
            kept.close()
            peers.send(Started(key, 1))
            peers.send(Ended(key=key, finish="stop", text="end", tokens=1, ids=[8], completion_tokens=1))
            assert b'"content":"end"' in rest(begun)
        assert frontend.process.wait(TIMEOUT) == 0


def test_what_ends_while_it_leaves_is_in_its_last_report(run_dir: Path) -> None:
    """The others add up what it has counted when it is gone."""
    with running(run_dir, peers=[OTHER]) as (frontend, peers):
        peers.script = silent
        with stream(frontend) as begun:
            key = peers.expect(Generate).keys[0]
            peers.send(Started(key, 1))
            peers.send(TextDelta(key, "a", [7]))
            rest(begun, b'"content":"a"')
            peers.state = state(1, stop_seconds=TIMEOUT)
            told(frontend, peers, 1)
            frontend.process.send_signal(signal.SIGTERM)
            while peers.reports.get(timeout=TIMEOUT).phase != "stopping":
                pass
            time.sleep(0.6)
            peers.send(Ended(key=key, finish="stop", text="end", tokens=1, ids=[8], completion_tokens=2))
            assert b'"content":"end"' in rest(begun)
        assert frontend.process.wait(TIMEOUT) == 0
        while not all_over(peers.reports.get(timeout=TIMEOUT)):
            pass


def all_over(report: ProcessReport) -> bool:
    """It has the one request, which has ended."""
    ended = {"requests_received": 1, "http_requests": 1, "request_success": 1, "generation_tokens": 2}
    posts = {name: value for name, value in report.counters.items() if "GET" not in name}  # health was asked for
    counted = {name: sum(value for key, value in posts.items() if f"pagewire_{name}_total" in key) for name in ended}
    return counted == ended and not [name for name in report.gauges if "requests_live" in name or "sequences_live" in name]
