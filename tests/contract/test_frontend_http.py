"""The frontend process and bytes that are not quite HTTP, encoded bodies, and what its log says of them."""

import gzip
import http.client
import json
import socket
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from messages.cluster import LOADING
from messages.request import Generate
from tests.support.frontend_peers import TIMEOUT, Frontend, Peers, cluster_state, running

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "A"}]}
CHAT_PATH = "/v1/chat/completions"
Pair = tuple[Frontend, Peers]


@pytest.fixture(scope="module")
def ready() -> Iterator[Pair]:
    with tempfile.TemporaryDirectory(prefix="pw-") as folder, running(Path(folder)) as pair:
        yield pair


def raw(frontend: Frontend, request: bytes) -> tuple[int, dict[str, str], Any]:
    """The answer to these bytes: status, headers in lower case, JSON."""
    with socket.create_connection(("127.0.0.1", frontend.port), timeout=TIMEOUT) as connection:
        connection.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer or not answer.endswith(b"}}"):
            got = connection.recv(65536)
            assert got, answer
            answer += got
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, json.loads(body)


POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
OLD_POST = b"POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\n"
BAD_HTTP = {
    "garbage": (b"nonsense\r\n\r\n", 400),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", 400),
    "version": (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 400),
    "header": (b"GET / HTTP/1.1\r\nHost x\r\n\r\n", 400),
    "long line": (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    "long header": (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 40_000 + b"\r\n\r\n", 400),
    "many headers": (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"A%d: b\r\n" % i for i in range(500)) + b"\r\n", 400),
    "two lengths": (POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400),
    "bad length": (POST + b"Content-Length: x\r\n\r\n{}", 400),
    "chunk size": (POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n", 400),
    "transfer encoding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
    "transfer encoding of the old": (OLD_POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", 400),
    "expect": (POST + b"Expect: cookies\r\nContent-Length: 0\r\n\r\n", 417),
    "expect nowhere": (b"POST /nowhere HTTP/1.1\r\nHost: x\r\nExpect: cookies\r\nContent-Length: 0\r\n\r\n", 417),
}


@pytest.mark.parametrize("case", sorted(BAD_HTTP))
def test_bad_http_gets_the_shape_of_every_error(ready: Pair, case: str) -> None:
    frontend, _ = ready
    request, expected = BAD_HTTP[case]
    status, headers, body = raw(frontend, request)
    assert status == expected
    assert headers["server"] == "pagewire"
    assert headers["x-request-id"]
    assert headers["content-type"].startswith("application/json")
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["code"]
    assert body["error"]["message"].endswith(".")
    assert "\n" not in body["error"]["message"]
    log = frontend.log()
    assert "Traceback" not in log
    assert "aiohttp" not in log


@pytest.mark.parametrize("case", ["gzip", "deflate", "identity"])
def test_encoded_bodies_are_decoded(ready: Pair, case: str) -> None:
    plain = json.dumps(CHAT).encode()
    body = {"gzip": gzip.compress(plain), "deflate": zlib.compress(plain), "identity": plain}[case]
    assert ready[0].post(CHAT_PATH, body, {"Content-Encoding": case})[0] == 200


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", b"{}", 400),
        ("deflate", b"{}", 400),
        ("gzip", gzip.compress(b"{}")[:-4], 400),
        ("gzip", gzip.compress(b"x" * (2 << 20)), 413),
        ("br", b"{}", 415),
        ("zstd", b"{}", 415),
        ("rot13", b"{}", 415),
        ("gzip, deflate", b"{}", 415),
    ],
)
@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/completions", "/tokenize", "/detokenize"])
def test_bodies_that_do_not_decode_are_refused(ready: Pair, path: str, encoding: str, body: bytes, status: int) -> None:
    frontend, _ = ready
    got, headers, answer = frontend.post(path, body, {"Content-Encoding": encoding})
    assert (got, headers["content-type"]) == (status, "application/json")
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    assert "Traceback" not in frontend.log()


def test_a_connection_whose_framing_is_in_doubt_is_closed(ready: Pair) -> None:
    """RFC 9112, 6.1: what HTTP/1.0 sends as chunks may be read otherwise by those between."""
    with socket.create_connection(("127.0.0.1", ready[0].port), timeout=TIMEOUT) as connection:
        connection.sendall(BAD_HTTP["transfer encoding of the old"][0])
        with connection.makefile("rb") as answer:
            assert answer.read().count(b"HTTP/1.0 400 ") == 1


HEAD = b"POST /v1/chat/completions HTTP/%b\r\nHost: x\r\nExpect: 100-Continue\r\n"


@pytest.mark.parametrize(
    ("more", "status"), [(b"Content-Length: 99999999", 413), (b"Content-Length: 2\r\nContent-Encoding: br", 415)], ids=["too large", "encoding"]
)
def test_a_body_that_will_be_refused_is_not_asked_for(ready: Pair, more: bytes, status: int) -> None:
    """The first thing said is the refusal, no `100 Continue`."""
    assert raw(ready[0], HEAD % b"1.1" + more + b"\r\n\r\n")[0] == status


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
def test_a_body_that_is_expected_is_asked_for(ready: Pair, version: bytes) -> None:
    body = json.dumps(CHAT).encode()
    with socket.create_connection(("127.0.0.1", ready[0].port), timeout=TIMEOUT) as connection:
        connection.sendall(HEAD % version + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        if version == b"1.1":
            assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        with connection.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/%b 200 " % version)


def test_one_connection_serves_on_after_errors_and_when_requests_come_ahead_of_answers(ready: Pair) -> None:
    """Nine requests in one write: the answers come in their order, the connection stays."""
    chat = json.dumps(CHAT).encode()
    sent = [
        (CHAT_PATH, chat, 200), (CHAT_PATH, b'{"x":', 400), (CHAT_PATH, json.dumps({**CHAT, "stream": True}).encode(), 200), ("/nowhere", chat, 404),
        ("/v1/models", b"", 405), (CHAT_PATH, b"", 400), (CHAT_PATH, chat[:-1] + b', "what": 1}', 400), ("/tokenize", b'{"prompt": "A"}', 200),
        (CHAT_PATH, chat, 200),
    ]  # fmt: skip
    parts = [b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body) for path, body, _ in sent]
    with socket.create_connection(("127.0.0.1", ready[0].port), timeout=TIMEOUT) as connection:
        connection.sendall(b"".join(parts))
        unread: Any = SimpleNamespace(makefile=lambda mode: connection.makefile(mode, 0))  # takes no byte of the next answer
        for path, _, status in sent:
            answer = http.client.HTTPResponse(unread)
            answer.begin()
            assert (path, answer.status) == (path, status)
            assert answer.read()


def test_a_body_of_unknown_length_is_limited_too(ready: Pair) -> None:
    with socket.create_connection(("127.0.0.1", ready[0].port), timeout=TIMEOUT) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        try:
            for _ in range(40):
                connection.sendall(chunk)
        except OSError:
            return  # the server has answered and closed before all was sent
        assert b" 413 " in connection.recv(200)


def test_a_wrong_content_type_is_tolerated(ready: Pair) -> None:
    assert ready[0].post(CHAT_PATH, CHAT, {"Content-Type": "text/plain"})[0] == 200


def test_what_the_server_said_may_come_back(ready: Pair) -> None:
    frontend, peers = ready
    said = frontend.post(CHAT_PATH, CHAT)[2]["choices"][0]["message"]
    assert said["refusal"] is None
    while not peers.received.empty():
        peers.received.get_nowait()
    again = {"messages": [*CHAT["messages"], said, *CHAT["messages"]]}
    assert frontend.post(CHAT_PATH, again)[0] == 200
    assert len(peers.expect(Generate).prompt.messages) == 3
    assert frontend.post("/tokenize", again)[0] == 200
    for path in (CHAT_PATH, "/tokenize"):
        status, _, answer = frontend.post(path, {"messages": [{**said, "tool_calls": [{"id": "x"}]}]})
        assert (status, answer["error"]["param"]) == (400, "messages[0].tool_calls[0]")


@pytest.mark.parametrize("path", [CHAT_PATH, "/v1/completions"])
def test_stream_options_without_a_stream_are_refused(ready: Pair, path: str) -> None:
    body = CHAT if path == CHAT_PATH else {"prompt": "A"}
    for options, status in ((None, 200), ({}, 400), ({"include_usage": True}, 400)):
        got, _, answer = ready[0].post(path, {**body, "stream": False, "stream_options": options})
        assert got == status
        assert status == 200 or answer["error"]["param"] == "stream_options"


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions/", "//v1/models", "/v1/../version", "/v1/chat%2Fcompletions", "/v1"])
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS"])
def test_other_paths_are_404(ready: Pair, method: str, path: str) -> None:
    status, headers, body = ready[0].call(method, path, b"{}")
    assert (status, headers["content-type"]) == (404, "application/json")
    if method != "HEAD":
        error = json.loads(body)["error"]
        assert (error["code"], error["message"]) == ("not_found", f"There is nothing at {path}; /docs says what there is.")


def test_probes_are_not_in_the_log(ready: Pair) -> None:
    frontend, _ = ready
    for path in ("/health", "/health/live", "/health/ready", "/health/startup", "/metrics", "/version"):
        assert frontend.get(path)[0] == 200
    assert frontend.get("/health/nowhere")[0] == 404
    log = frontend.log()
    assert "GET /version 200" in log
    assert "GET /health/nowhere 404" in log
    for path in ("/health", "/health/live", "/health/ready", "/health/startup", "/metrics"):
        assert f"GET {path} 200" not in log


def test_health_and_requests_agree_when_no_tokenizer_is_ready(run_dir: Path) -> None:
    """Before the cluster was ready once."""
    with running(run_dir, ready=False) as (frontend, peers):
        peers.state = cluster_state(ready=False, phase=LOADING, tokenizer=LOADING)
        deadline = time.monotonic() + TIMEOUT
        while b"tokenizer0 loading" not in frontend.get("/health")[2]:
            assert time.monotonic() < deadline
        for method, path in (("GET", "/health/ready"), ("GET", "/v1/models"), ("POST", CHAT_PATH), ("POST", "/detokenize")):
            status, headers, body = frontend.call(method, path, b"{}" if method == "POST" else None)
            assert (path, status) == (path, 503)
            assert json.loads(body)["error"]["message"] == "Not ready: phase loading; tokenizer0 loading."
            assert int(headers["retry-after"]) >= 1
        peers.state = cluster_state(incarnation=2)
        frontend.wait(200)
        assert frontend.post(CHAT_PATH, CHAT)[0] == 200
