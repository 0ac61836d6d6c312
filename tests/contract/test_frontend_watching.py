"""What a frontend writes and sends of each request that has ended: lines of the access log, OpenTelemetry spans."""

import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from messages.request import Generate
from messages.text import Begun, Ended, FromTokenizer, Problem, Started, TextDelta
from tests.support.collector import Collector, collecting
from tests.support.frontend_peers import TIMEOUT, Frontend, Message, Peers, events, read_until, running, silent
from transport.columns import pack_f32

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "a secret question"}]
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Watched:
    def __init__(self, frontend: Frontend, peers: Peers, log: Path, collector: Collector) -> None:
        self.frontend, self.peers, self.log, self.collector = frontend, peers, log, collector

    def line(self, name: str) -> dict[str, Any]:
        """The line of the request whose X-Request-Id was `name`."""
        return self.line_with(request_id=name)

    def line_with(self, **fields: object) -> dict[str, Any]:
        limit = time.monotonic() + TIMEOUT
        while time.monotonic() < limit:
            for line in self.log.read_text().split("\n")[:-1]:  # the last one may be half written
                told: dict[str, Any] = json.loads(line)
                if fields.items() <= told.items():
                    return told
            time.sleep(0.02)
        raise AssertionError(f"no line with {fields}:\n{self.log.read_text()}")


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pw-")))
        (folder / "log").touch()  # as the launcher does
        collector = stack.enter_context(collecting())
        os.environ["OTEL_BSP_SCHEDULE_DELAY"] = "50"
        stack.callback(os.environ.pop, "OTEL_BSP_SCHEDULE_DELAY")
        frontend, peers = stack.enter_context(running(folder, access_log=str(folder / "log"), otlp_endpoint=collector.url))
        yield Watched(frontend, peers, folder / "log", collector)


def answering(message: Message) -> Iterator[FromTokenizer]:
    """Waits 0.02 s in the line, takes 0.01 s for a prompt of 7 tokens, 4 of them cached, and says two tokens."""
    if isinstance(message, Generate):
        keys = message.keys
        yield Started(keys[0], 7)
        yield Begun(keys, pack_f32([0.02] * len(keys)), pack_f32([0.01] * len(keys)))
        yield from (TextDelta(key, "private", [7]) for key in keys)
        yield from (Ended(key=key, finish="stop", tokens=1, completion_tokens=2, cached_tokens=4) for key in keys)


def refusing(message: Message) -> Iterator[FromTokenizer]:
    if isinstance(message, Generate):
        yield Started(message.keys[0], 7)
        problem = Problem(status=429, code="queue_full", message="Full.")
        yield from (Ended(key=key, problem=problem, refused=True) for key in message.keys)


def failing(message: Message) -> Iterator[FromTokenizer]:
    if isinstance(message, Generate):
        yield Started(message.keys[0], 7)
        yield TextDelta(message.keys[0], "private", [7])
        yield Ended(key=message.keys[0], problem=Problem(status=500, code="step_failed", message="No."))


def test_a_line_says_who_asked_what_and_how_it_went(watched: Watched) -> None:
    watched.peers.script = answering
    for name, stream in (("whole", False), ("streamed", True)):
        body = json.dumps({"messages": MESSAGES, "n": 2, "stream": stream}).encode()
        headers = {"X-Request-Id": name, "Authorization": "Bearer sk-key"}
        answer = watched.frontend.call("POST", f"{CHAT}?key=sk-key", body, headers)[2]
        line = watched.line(name)
        expected = {
            "frontend": "frontend0", "client": "127.0.0.1", "method": "POST", "path": CHAT, "status": 200, "error": None, "model": "tiny",
            "stream": stream, "choices": 2, "finish": "stop", "prompt_tokens": 7, "completion_tokens": 4, "cached_tokens": 4,
        }  # fmt: skip
        assert {key: line[key] for key in expected} == expected
        assert line["id"] == (events(answer)[0] if stream else json.loads(answer))["id"]
        assert line["queue_seconds"] == pytest.approx(0.02)
        assert 0 < line["ttft_seconds"] <= line["duration_seconds"] < 10
        assert len(answer) < line["bytes"] < len(answer) + 600
        assert line["time"].endswith("Z")
    everything = watched.log.read_text()
    assert not [word for word in ("secret", "private", "sk-key", "Bearer") if word in everything]


def test_a_background_response_has_a_line_of_its_own(watched: Watched) -> None:
    """One for the request, which is over at once, and one for the work, when that is."""
    watched.peers.script = answering
    body = {"input": "a secret question", "background": True}
    answer = watched.frontend.post("/v1/responses", body, {"X-Request-Id": "behind"})[2]
    asked, done = watched.line_with(request_id="behind", id=None), watched.line_with(request_id="behind", id=answer["id"])
    assert (asked["status"], asked["prompt_tokens"], asked["bytes"] > 0) == (200, None, True)
    expected = {"status": 200, "error": None, "client": "127.0.0.1", "finish": "stop", "prompt_tokens": 7, "completion_tokens": 2, "bytes": 0}
    assert {key: done[key] for key in expected} == expected
    assert done["queue_seconds"] == pytest.approx(0.02)
    watched.peers.script = silent
    answer = watched.frontend.post("/v1/responses", body, {"X-Request-Id": "stopped"})[2]
    watched.frontend.post(f"/v1/responses/{answer['id']}/cancel", {})
    assert watched.line_with(request_id="stopped", status=499)["error"] == "cancelled"


def test_bytes_are_those_that_were_sent(watched: Watched) -> None:
    """Of streams whose writers differ: a chat, a response, and the events of one that is followed."""
    watched.peers.script = answering
    background = watched.frontend.post("/v1/responses", {"input": "A", "background": True})[2]["id"]
    wanted = [
        ("chat", "POST", CHAT, {"messages": MESSAGES, "stream": True}),
        ("response", "POST", "/v1/responses", {"input": "A", "stream": True}),
        ("followed", "GET", f"/v1/responses/{background}?stream=true", None),
        ("whole", "GET", "/v1/models", None),
    ]
    for name, method, path, body in wanted:
        raw = b"" if body is None else json.dumps(body).encode()
        with socket.create_connection(("127.0.0.1", watched.frontend.port), timeout=20) as connection:
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nX-Request-Id: sent-{name}\r\nConnection: close\r\nContent-Length: {len(raw)}\r\n\r\n"
            connection.sendall(head.encode() + raw)
            with connection.makefile("rb") as answer:
                received = len(answer.read())
        assert watched.line(f"sent-{name}")["bytes"] == received, name


def test_what_was_refused_counts_no_tokens(watched: Watched) -> None:
    watched.frontend.post(CHAT, {"messages": MESSAGES, "n": 0}, {"X-Request-Id": "bad"})
    line = watched.line("bad")
    assert (line["status"], line["error"], line["id"], line["prompt_tokens"]) == (400, "invalid_value", None, None)
    watched.peers.script = refusing
    before = watched.frontend.metric("sequences_started_total"), watched.frontend.metric("prompt_tokens_total")
    watched.frontend.post(CHAT, {"messages": MESSAGES}, {"X-Request-Id": "full"})
    line = watched.line("full")
    assert (line["status"], line["error"], line["choices"], line["finish"], line["prompt_tokens"]) == (429, "queue_full", 1, None, None)
    assert (watched.frontend.metric("sequences_started_total"), watched.frontend.metric("prompt_tokens_total")) == before
    watched.frontend.call("GET", "/nowhere/" + "x" * 300, headers={"X-Request-Id": "lost\tid"})
    line = watched.line("lost_id")
    assert (line["status"], line["error"], len(line["path"]), line["model"]) == (404, None, 200, None)


def test_a_stream_that_fails_and_a_client_that_goes(watched: Watched) -> None:
    watched.peers.script = silent
    while not watched.peers.received.empty():
        watched.peers.received.get_nowait()
    connection = watched.frontend.open(CHAT, {"messages": MESSAGES, "stream": True})
    [key] = watched.peers.expect(Generate).keys
    watched.peers.send(Started(key, 7))
    watched.peers.send(TextDelta(key, "private", [7]))
    read_until(connection, b"private")
    watched.peers.send(Ended(key=key, problem=Problem(status=500, code="step_failed", message="No.")))
    line = watched.line_with(status=200, error="step_failed")
    assert (line["finish"], line["completion_tokens"], line["queue_seconds"]) == ("error", 1, None)
    connection.close()
    watched.peers.script = silent
    received = watched.frontend.metric("requests_received_total")
    connection = watched.frontend.open(CHAT, {"messages": MESSAGES, "stream": True})
    watched.peers.expect(Generate)
    watched.frontend.wait_metric("requests_live", 1)
    connection.close()
    watched.frontend.wait_metric("requests_live", 0)
    assert watched.frontend.metric("requests_received_total") == received + 1
    assert watched.frontend.metric("http_requests_total", handler=CHAT, status="499") == 1
    line = watched.line_with(status=499, path=CHAT)
    assert (line["error"], line["finish"], line["prompt_tokens"], line["stream"]) == (None, None, None, True)


def test_spans_of_a_request_lie_below_the_clients(watched: Watched) -> None:
    watched.peers.script = answering
    name = "a-traced-request"
    headers = {"X-Request-Id": name, "traceparent": f"00-{TRACE}-{PARENT}-01"}
    watched.frontend.post("/v1/completions", {"prompt": "a secret question", "n": 2, "max_tokens": 9, "temperature": 0.5}, headers)
    [span] = [span for span in watched.collector.wait(1, "text_completion tiny") if span.attributes["pagewire.request_id"] == name]
    assert (span.trace, span.parent, span.error) == (TRACE, PARENT, False)
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "pagewire",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "gen_ai.response.finish_reasons": ["stop", "stop"],
        "http.response.status_code": 200,
        "http.route": "/v1/completions",
    }
    assert {key: span.attributes[key] for key in expected} == expected
    assert (span.resource["service.name"], span.resource["service.instance.id"]) == ("pagewire", "frontend0")
    below = [child for child in watched.collector.spans if child.parent == span.id]
    assert sorted((child.name, child.attributes["pagewire.choice"]) for child in below) == [
        (part, choice) for part in ("decode", "prefill", "queue") for choice in (0, 1)
    ]
    for child in below:
        assert span.begin <= child.begin <= child.end <= span.end + 1_000_000
    told = str([span.attributes for span in watched.collector.spans])
    assert "secret" not in told
    assert "private" not in told


def test_spans_of_requests_without_a_parent_or_with_a_bad_one_and_of_errors(watched: Watched) -> None:
    watched.peers.script = answering
    for name, parent in (("alone", None), ("odd", "00-xyz-1-01"), ("long", "0" * 10_000)):
        watched.frontend.post(CHAT, {"messages": MESSAGES}, {"X-Request-Id": name, **({"traceparent": parent} if parent else {})})
    watched.peers.script = failing
    watched.frontend.post(CHAT, {"messages": MESSAGES}, {"X-Request-Id": "wrong"})
    watched.frontend.post(CHAT, {"messages": MESSAGES, "n": 0}, {"X-Request-Id": "never"})
    limit = time.monotonic() + TIMEOUT
    while not {"alone", "odd", "long", "wrong", "never"} <= (
        found := {span.attributes["pagewire.request_id"]: span for span in watched.collector.spans if span.name == "chat tiny"}
    ).keys():
        assert time.monotonic() < limit
        time.sleep(0.02)
    assert [found[name].parent for name in ("alone", "odd", "long")] == ["", "", ""]
    assert len({found[name].trace for name in ("alone", "odd", "long")}) == 3
    assert (found["wrong"].attributes["error.type"], found["wrong"].error) == ("step_failed", True)
    assert (found["never"].attributes["error.type"], found["never"].error) == ("invalid_value", False)
    assert not [span for span in watched.collector.spans if span.attributes.get("http.route") == "/metrics"]


def test_a_collector_that_is_gone_and_a_full_disk_harm_nobody(tmp_path: Path) -> None:
    with collecting() as collector:
        pass
    took: list[float] = []
    while len(took) < 3 and min(took, default=9.0) >= 9:  # OpenTelemetry alone would try for ten seconds; a busy machine takes as long now and then
        with tempfile.TemporaryDirectory(prefix="pw-") as folder, running(Path(folder), access_log="/dev/full", otlp_endpoint=collector.url) as pair:
            frontend, peers = pair
            peers.script = answering
            for _ in range(20):
                assert frontend.post(CHAT, {"messages": MESSAGES})[0] == 200
            limit = time.monotonic() + TIMEOUT
            while frontend.metric("access_log_dropped_total") < 20:
                assert time.monotonic() < limit
                time.sleep(0.05)
            assert frontend.metric("access_log_lines_total") == 0
            began = time.monotonic()
            assert frontend.terminate() == 0
            took.append(time.monotonic() - began)
            assert frontend.log().count("No space left on device") == 1
    assert took[-1] < 9


def test_text_for_people(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with tempfile.TemporaryDirectory(prefix="pw-") as folder, running(Path(folder), access_log=str(log), log_format="text") as (frontend, peers):
        peers.script = answering
        frontend.post(CHAT, {"messages": MESSAGES}, {"X-Request-Id": "x=1"})
        frontend.terminate()
    [line] = [line for line in log.read_text().splitlines() if CHAT in line]
    assert ' request_id="x=1" ' in line
    assert f" client=127.0.0.1 method=POST path={CHAT} status=200 model=tiny stream=false choices=1 finish=stop prompt_tokens=7 " in line
