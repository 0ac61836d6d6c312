"""The frontend process with limits of keys, deadlines, and clients that do not read: who is told what, who is cut off, and what memory is taken."""

import contextlib
import json
import os
import select
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from messages.request import Cancel, Generate
from messages.text import Ended, FromTokenizer, Problem, Started, TextDelta, Texts
from tests.support.frontend_peers import TIMEOUT, Frontend, Message, Peers, events, read_until, running, say, silent
from tests.support.waiting import wait_until
from transport.key_file import KeyLimits, new_key

PATH = "/v1/completions"
BODY: dict[str, Any] = {"prompt": "A", "max_tokens": 100_000}
MAX_UNSENT = 256 << 10
STALL_SECONDS = 1.0
LINE = "." * 1000
MEGABYTE = 1 << 20


@dataclass
class Site:
    """A frontend, its peers, and a file of keys with limits; `boss` has none."""

    file: Path
    keys: dict[str, str]
    lines: dict[str, str]
    frontend: Frontend
    peers: Peers

    def write(self, **changed: str) -> None:
        self.lines |= changed
        temporary = self.file.with_name("new")
        temporary.write_text("\n".join(self.lines.values()) + "\n")
        temporary.chmod(0o600)
        temporary.rename(self.file)

    def post(self, name: str, **fields: Any) -> tuple[int, dict[str, str], Any]:
        return self.frontend.post(PATH, BODY | fields, {"Authorization": f"Bearer {self.keys[name]}"})

    def open(self, **fields: Any) -> socket.socket:
        """A stream on a connection with a small buffer, so that little is read of it that nobody asks for."""
        raw = json.dumps(BODY | {"stream": True} | fields).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.keys['boss']}\r\nContent-Length: {len(raw)}\r\n\r\n"
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(TIMEOUT)
        connection.connect(("127.0.0.1", self.frontend.port))
        connection.sendall(head.encode() + raw)
        return connection

    def memory(self) -> int:
        return int(psutil.Process(self.frontend.process.pid).memory_info().rss)


@pytest.fixture(scope="module")
def shared() -> Iterator[Site]:
    limits = {"boss": KeyLimits(), "one": KeyLimits(requests=1), "few": KeyLimits(rpm=3), "small": KeyLimits(tpm=20)}
    made = {name: new_key(name, limits=limit) for name, limit in limits.items()}
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        file = Path(folder) / "keys"
        file.write_text("".join(line.text() + "\n" for _, line in made.values()))
        file.chmod(0o600)
        options: dict[str, Any] = {"default_timeout": 50.0, "max_timeout": 100.0, "max_unsent_bytes": MAX_UNSENT}
        with running(Path(folder), api_keys=str(file), refresh_seconds=0.1, cors_origins=("*",), **options) as (frontend, peers):
            keys = {name: key for name, (key, _) in made.items()}
            yield Site(file, keys, {name: line.text() for name, (_, line) in made.items()}, frontend, peers)


@pytest.fixture
def site(shared: Site) -> Site:
    shared.peers.script = say("Hello", " world")
    shared.frontend.wait_metric("frontend_live_sequences", 0)
    shared.peers.forget(shared.frontend, {"x-api-key": shared.keys["boss"]})
    return shared


def rates(headers: dict[str, str]) -> dict[str, str]:
    return {name.removeprefix("x-ratelimit-"): value for name, value in headers.items() if name.startswith("x-ratelimit-")}


# Deadlines


def test_the_time_a_request_may_take_goes_along(site: Site) -> None:
    for fields, most in (({}, 50.0), ({"timeout": 25}, 25.0), ({"timeout": 12.5}, 12.5), ({"timeout": None}, 50.0)):
        assert site.post("boss", **fields)[0] == 200
        sent = site.peers.expect(Generate).timeout
        assert sent is not None
        assert most - 10.0 < sent <= most
    for wrong in (0, -1, 100.5, 1e9, "5", True, [5]):
        status, _, body = site.post("boss", timeout=wrong)
        assert (status, body["error"]["param"]) == (400, "timeout")
    error = site.frontend.post("/v1/embeddings", {"input": "A", "timeout": 200}, {"x-api-key": site.keys["boss"]})[2]["error"]
    assert error["message"] == "timeout must not be above 100 s here."


def out_of_time(message: Message) -> Iterator[FromTokenizer]:
    """One token, then what the scheduler says at the deadline."""
    if isinstance(message, Generate):
        yield Started(message.keys[0], 5)
        yield from (TextDelta(key, "Hello", [7]) for key in message.keys)
        yield from (Ended(key=key, problem=Problem(status=504, code="deadline_exceeded", message="late")) for key in message.keys)


def test_out_of_time_is_504_or_the_last_event_of_a_stream(site: Site) -> None:
    expired = site.frontend.metric("requests_expired_total")
    site.peers.script = out_of_time
    status, _, body = site.post("boss", n=2)
    assert (status, body["error"]["code"], body["error"]["type"]) == (504, "deadline_exceeded", "timeout_error")
    site.peers.expect(Generate)
    site.peers.script = silent
    with site.open(n=2) as stream:
        keys = site.peers.expect(Generate).keys
        site.peers.send(Started(keys[0], 5))
        for key in keys:
            site.peers.send(TextDelta(key, "Hello", [7]))
        said = read_until(stream, b'"Hello"')
        site.peers.send(Ended(key=keys[0], problem=Problem(status=504, code="deadline_exceeded", message="late")))
        said = read(stream, said)
    *texts, error, done = events(said)
    assert {choice["text"] for event in texts for choice in event["choices"]} == {"Hello"}
    assert (error["error"]["code"], done) == ("deadline_exceeded", "[DONE]")
    site.frontend.wait_metric("requests_expired_total", expired + 2)
    assert site.frontend.metric("requests_refused_total", status="504") == 1
    assert site.frontend.metric("request_success_total", finished_reason="error") == 4


def test_the_frontend_sees_to_it_when_nobody_else_does(site: Site) -> None:
    expired = site.frontend.metric("requests_expired_total")
    site.peers.script = silent
    began = time.monotonic()
    assert site.post("boss", timeout=0.05)[0] == 504
    assert 1.0 < time.monotonic() - began < 20.0
    assert site.peers.expect(Cancel).keys
    site.frontend.wait_metric("requests_expired_total", expired + 1)
    site.frontend.wait_metric("frontend_live_sequences", 0)


def read(connection: socket.socket, said: bytes = b"") -> bytes:
    """The events of a stream in chunks, of which `said` has been read, to its end."""
    data = bytearray(said)
    while b"data: [DONE]\n\n" not in data[-64:]:
        got = connection.recv(65536)
        assert got, data
        data += got
    body, found = bytes(data).partition(b"\r\n\r\n")[2], b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        found, body = found + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return found


# What a client is told


def test_retry_after_is_never_less_than_was_predicted(site: Site) -> None:
    def full(message: Message) -> Iterator[FromTokenizer]:
        if isinstance(message, Generate):
            problem = Problem(status=429, code="queue_too_slow", message="slow", retry_after=3.1)
            yield from (Ended(key=key, problem=problem, refused=True) for key in message.keys)

    site.peers.script = full
    status, headers, body = site.post("boss")
    assert (status, headers["retry-after"], body["error"]["code"], body["error"]["type"]) == (429, "4", "queue_too_slow", "rate_limit_error")
    assert site.frontend.metric("requests_limited_total", reason="queue_too_slow") == 1


def test_limits_of_keys(site: Site) -> None:
    """Requests at once and a minute, tokens a minute: the reason, when to come again, OpenAI's headers; nobody else is held up."""
    site.peers.script = silent
    with contextlib.closing(site.frontend.connection()) as connection:
        headers = {"Authorization": f"Bearer {site.keys['one']}"}
        connection.request("POST", PATH, json.dumps(BODY), headers)
        key = site.peers.expect(Generate).keys[0]
        status, told, body = site.post("one")
        assert (status, body["error"]["code"], told["retry-after"]) == (429, "too_many_concurrent_requests", "1")
        assert rates(told) == {}
        site.peers.send(Started(key, 5))
        site.peers.send(Ended(key=key, finish="stop"))
        assert connection.getresponse().status == 200
    site.peers.script = say("Hello", " world")
    assert site.post("one")[0] == 200

    began = time.monotonic()
    for left in (2, 1, 0):
        status, told, _ = site.post("few")
        assert (status, told["x-ratelimit-limit-requests"], told["x-ratelimit-remaining-requests"]) == (200, "3", str(left))
    status, told, body = site.post("few")
    assert (status, body["error"]["code"]) == (429, "requests_per_minute_exceeded")
    assert 19 - (time.monotonic() - began) <= int(told["retry-after"]) <= 20
    assert told["x-ratelimit-reset-requests"].endswith("s")
    assert "few" not in body["error"]["message"]

    for used in (5, 5, 1000):  # so many that none come back before the next one
        site.peers.script = say("Hello", " world", prompt_tokens=used)
        assert site.post("small")[0] == 200
    status, told, body = site.post("small")
    assert (status, body["error"]["code"]) == (429, "tokens_per_minute_exceeded")
    assert rates(told).keys() == {"limit-tokens", "remaining-tokens", "reset-tokens"}
    assert (told["x-ratelimit-limit-tokens"], told["x-ratelimit-remaining-tokens"]) == ("20", "0")
    assert site.post("boss")[0] == 200
    assert site.frontend.call("GET", "/v1/models", headers={"x-api-key": site.keys["few"]})[0] == 200
    found = {reason: site.frontend.metric("requests_limited_total", reason=reason) for reason in (body["error"]["code"], "other")}
    assert found == {"tokens_per_minute_exceeded": 1, "other": 0}
    limited = site.frontend.metric("requests_limited_total")
    assert limited == site.frontend.metric("requests_refused_total", status="429")


def test_limits_are_read_again_and_web_pages_may_see_the_headers(site: Site) -> None:
    key, line = new_key("fresh", limits=KeyLimits(rpm=1))
    site.keys["fresh"] = key
    site.write(fresh=line.text())
    wait_until(lambda: site.post("fresh")[0] != 401)
    assert site.post("fresh")[0] == 429
    site.write(fresh=line.text().replace("rpm=1", "rpm=100"))
    wait_until(lambda: site.post("fresh")[0] == 200)
    status, told, _ = site.frontend.post(PATH, BODY, {"x-api-key": key, "Origin": "https://page.example"})
    assert (status, told["x-ratelimit-limit-requests"]) == (200, "100")
    assert "x-ratelimit-remaining-tokens" in told["access-control-expose-headers"]


# Clients that do not read


def flood(site: Site, keys: list[int], lines: int) -> None:
    """So many texts of LINE for each of these sequences; until they have been taken in."""
    site.peers.script = say("Hello", " world")
    for _ in range(lines):
        site.peers.send(Texts(keys, [LINE] * len(keys), [1] * len(keys), bytes(4 * len(keys))))
    assert site.post("boss")[2]["choices"][0]["text"] == "Hello world", "and others are served"


def test_clients_that_do_not_read_are_cut_off_and_take_bounded_memory(site: Site) -> None:
    """Eight streams get more and more, past what the system buffers (some 4 MB each); none may keep more than MAX_UNSENT of it here."""
    site.peers.script = silent
    slow, began, lines = site.frontend.metric("slow_readers_total"), site.memory(), 0
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(site.open()) for _ in range(8)]
        keys = [site.peers.expect(Generate).keys[0] for _ in streams]
        for key in keys:
            site.peers.send(Started(key, 1))
        while site.frontend.metric("slow_readers_total") < slow + 8:
            flood(site, keys, 250)
            lines += 250
            assert lines <= 20_000
        site.frontend.wait_metric("slow_readers_total", slow + 8)
        gone = {key for _ in streams for key in site.peers.expect(Cancel).keys}
        assert gone == set(keys)
        taken = site.memory() - began
        assert taken < 8 * 4 * MAX_UNSENT, f"{taken} bytes for 8 streams"
        for stream in streams:
            with contextlib.suppress(ConnectionError):
                while stream.recv(MEGABYTE):
                    pass
    assert site.frontend.metric("requests_limited_total", reason="slow_reader") == 0
    site.frontend.wait_metric("requests_live", 0)


def test_who_reads_a_byte_now_and_then_loses_nothing_up_to_the_bound(site: Site) -> None:
    site.peers.script = silent
    with site.open() as stream:
        key = site.peers.expect(Generate).keys[0]
        site.peers.send(Started(key, 1))
        said, total, before, queued = stream.recv(1), 0, -1, 0
        while queued > before or queued < MEGABYTE:  # until the system takes no more
            flood(site, [key], 50)
            total += 50
            said += stream.recv(1)
            before, queued = queued, unread(site, stream)
        assert queued
        site.peers.send(Ended(key=key, finish="length", completion_tokens=total))
        while b"data: [DONE]\n\n" not in said[-64:]:
            said += stream.recv(MEGABYTE)
        assert said.count(LINE.encode()[:500]) >= total, "of each text the first or the second half is in one piece, whatever chunks it is in"
        site.frontend.wait_metric("frontend_live_sequences", 0)


def test_one_large_event_is_no_slow_reader(site: Site) -> None:
    """The logprobs of a long prompt come in one event, many times larger than what may wait: its reader has as much time as others."""
    site.peers.script = silent
    with site.open() as stream:
        key = site.peers.expect(Generate).keys[0]
        site.peers.send(Started(key, 1))
        site.peers.send(Texts([key], ["." * 16 * MEGABYTE], [1], bytes(4)))
        flood(site, [key], 100)
        site.peers.send(Ended(key=key, finish="length", completion_tokens=101))
        said = read(stream)
    assert len(said) > 16 * MEGABYTE
    assert events(said)[-1] == "[DONE]"


def unread(site: Site, stream: socket.socket) -> int:
    """Bytes that the system holds for this client on the server's side (see proc_net_tcp(5))."""
    ends = f":{site.frontend.port:04X}", f":{stream.getsockname()[1]:04X}"
    with open("/proc/net/tcp") as table:
        lines = [line.split() for line in table]
    return sum(int(line[4].split(":")[0], 16) for line in lines if line[1].endswith(ends[0]) and line[2].endswith(ends[1]))


def test_a_client_that_reads_nothing_of_a_whole_answer_is_cut_off(run_dir: Path) -> None:
    with running(run_dir, stall_seconds=STALL_SECONDS) as (frontend, peers):
        peers.script = say(*[LINE] * 12_000)
        with frontend.open(PATH, BODY) as connection:
            while peers.reports.get(timeout=TIMEOUT).counters.get("stalled_connections") != 1:
                pass
            assert select.select([connection], [], [], TIMEOUT)[0]
            with contextlib.suppress(ConnectionError):
                read_bytes = sum(iter(lambda: len(connection.recv(MEGABYTE)), 0))
                assert read_bytes < 12_000 * len(LINE)
        frontend.wait_metric("requests_live", 0)
        assert os.path.exists(f"/proc/{frontend.process.pid}")
