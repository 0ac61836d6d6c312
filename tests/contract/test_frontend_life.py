"""The life of a frontend process: before its cluster is ready, beside neighbours that come and go, and its end."""

import json
import threading
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frontend.server import DRAIN_SECONDS, GOODBYE_SECONDS
from launcher.ending import STAGE_SECONDS
from messages.cluster import LOADING, STOPPING
from messages.explain import Explain, Explained, Life
from messages.request import Cancel, Delivered, Generate
from messages.text import Ended, Started, TextDelta, Texts
from tests.contract.test_frontend_changes import state, told
from tests.support.frontend_peers import LOADING_STATE, TIMEOUT, Frontend, Message, Peers, cluster_state, read_until, running, silent
from tests.support.waiting import wait_until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "A"}]}
CHAT_PATH = "/v1/chat/completions"
TEXT_PATH = "/v1/completions"


def test_before_ready_everything_says_503_with_the_phase(run_dir: Path) -> None:
    with running(run_dir, ready=False) as (frontend, peers):
        peers.state = LOADING_STATE
        frontend.wait(200, "/health/live")
        deadline = time.monotonic() + TIMEOUT
        while b"43%" not in frontend.get("/health/ready")[2]:
            assert time.monotonic() < deadline
        for method, path in (("GET", "/health/ready"), ("GET", "/health/startup"), ("GET", "/v1/models"), ("POST", CHAT_PATH), ("POST", "/tokenize")):
            status, headers, body = frontend.call(method, path, b"{}" if method == "POST" else None)
            assert status == 503
            assert int(headers["retry-after"]) >= 1
            message = json.loads(body)["error"]["message"]
            assert "phase loading" in message
            assert "loading weights (43%)" in message
        assert frontend.get("/metrics")[0] == 200
        peers.state = cluster_state()
        frontend.wait(200)
        assert frontend.get("/health/startup")[0] == 200


def test_a_silent_supervisor_is_not_ready(run_dir: Path) -> None:
    with running(run_dir) as (frontend, peers):
        peers.state = None
        frontend.wait(503)
        health = json.loads(frontend.get("/health")[2])
        assert "has not been heard" in health["reason"]
        assert frontend.get("/health/startup")[0] == 200
        peers.state = cluster_state()
        frontend.wait(200)


def test_requests_are_taken_while_the_worker_is_started_again(run_dir: Path) -> None:
    with running(run_dir) as (frontend, peers):
        peers.state = LOADING_STATE
        frontend.wait(503)
        health = json.loads(frontend.get("/health/ready")[2])
        assert "loading weights (43%)" in health["reason"]
        assert (health["accepting"], health["steps"]["running"], health["steps"]["waiting"]) == (True, 3, 2)
        assert frontend.post(CHAT_PATH, CHAT)[0] == 200
        assert frontend.get("/v1/models")[0] == 200
        assert frontend.get("/health/startup")[0] == 200


def lived(message: Message) -> Iterator[Explained]:
    """A scheduler that knows of each sequence what has happened to it."""
    if isinstance(message, Explain):
        yield Explained(key=message.key, frontend=message.frontend, standings=[], lives=[Life(key=key, moments=[]) for key in message.keys])


def lives(frontend: Frontend, sequence: int) -> list[tuple[bool, Any]]:
    """Of each choice of this one's request: whether it was resumed, and its life."""
    choices = json.loads(frontend.get(f"/v1/requests/{sequence}?life=true")[2])["choices"]
    return [(choice["resumed"], choice["life"]) for choice in choices]


def test_a_stream_goes_on_after_a_tokenizers_death(run_dir: Path) -> None:
    """Nothing twice, nothing lost; and what comes while there is no tokenizer waits for the next."""
    with running(run_dir) as (frontend, peers):
        peers.script = silent
        with frontend.open(TEXT_PATH, {"prompt": "A", "stream": True, "n": 2, "seed": 5}) as stream:
            first, second = peers.expect(Generate).keys
            peers.send(Started(first, 1))
            peers.send(Texts([first, second], ["one", "eins"], [1, 2], array("i", [1, 2, 3]).tobytes()))
            read_until(stream, b"eins")
            peers.state = cluster_state(phase=LOADING, ready=False, incarnation=2, tokenizer=LOADING)
            assert peers.expect(Cancel).keys == [first, second]
            with frontend.open(CHAT_PATH, CHAT) as waiting:
                peers.send(Texts([first], ["late"], [1], bytes(4)))
                frontend.wait(503)
                peers.state = cluster_state(incarnation=2)
                again, new = peers.expect(Generate), peers.expect(Generate)
                assert (again.resumed, again.seeds[0]) == ([Delivered(array("i", [1]).tobytes()), Delivered(array("i", [2, 3]).tobytes())], 5)
                assert new.resumed == []
                peers.send(Started(new.keys[0], 1))
                peers.send(Ended(key=new.keys[0], finish="stop", text="answer", tokens=1, completion_tokens=1))
                assert b"answer" in read_until(waiting, b"answer")
            third, fourth = again.keys
            peers.send(Texts([third, fourth], ["two", "zwei"], [1, 1], bytes(8)))
            peers.send(Ended(key=third, finish="length", completion_tokens=2))
            peers.send(Ended(key=fourth, finish="length", completion_tokens=3))
            rest = read_until(stream, b"[DONE]")
        peers.script = lived
        assert lives(frontend, third) == [(True, None)] * 2
        wait_until(lambda: lives(frontend, new.keys[0]) == [(False, [])])  # the frontend does not wait for an answer that comes late
        assert rest.count(b'"text":"two"') == rest.count(b'"text":"zwei"') == 1
        assert b"late" not in rest


def test_sigterm_lets_requests_end_and_exits_0(run_dir: Path) -> None:
    with running(run_dir) as (frontend, peers):
        peers.script = silent
        answers: list[tuple[int, Any]] = []
        thread = threading.Thread(target=lambda: answers.append(frontend.post(CHAT_PATH, CHAT)[::2]))
        thread.start()
        key = peers.expect(Generate).keys[0]
        peers.state = state(1, stop_seconds=TIMEOUT)
        told(frontend, peers, 1)
        frontend.process.terminate()
        wait_for_phase(peers, STOPPING)
        for message in (Started(key, 1), TextDelta(key, "late", [7]), Ended(key=key, finish="stop", completion_tokens=1)):
            peers.send(message)
        thread.join(timeout=TIMEOUT)
        assert answers[0][0] == 200
        assert answers[0][1]["choices"][0]["message"]["content"] == "late"
        assert frontend.process.wait(timeout=TIMEOUT) == 0


def wait_for_phase(peers: Peers, phase: str) -> None:
    while peers.reports.get(timeout=TIMEOUT).phase != phase:
        pass


def test_sigterm_ends_what_does_not_end_itself(run_dir: Path) -> None:
    with running(run_dir) as (frontend, peers):
        peers.script = silent
        with frontend.open(CHAT_PATH, CHAT) as plain, frontend.open(CHAT_PATH, {**CHAT, "stream": True}) as stream:
            keys = {peers.expect(Generate).keys[0], peers.expect(Generate).keys[0]}
            for key in keys:
                peers.send(Started(key, 1))
            read_until(stream, b"event-stream")
            assert DRAIN_SECONDS + GOODBYE_SECONDS < STAGE_SECONDS  # when the supervisor would kill it
            assert frontend.terminate() == 0
            assert b" 503 " in read_until(plain, b"shutting down")
            assert b"shutting_down" in read_until(stream, b"[DONE]")
        assert {peers.expect(Cancel).keys[0], peers.expect(Cancel).keys[0]} == keys
