"""The frontend process with keys, TLS, origins and tight limits: what is let in, what is told, and what is never told."""

import contextlib
import json
import os
import select
import socket
import ssl
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from messages.explain import Explain, Explained
from messages.request import Cancel, Generate
from messages.text import FromTokenizer, Started
from tests.support.certificates import make_certificate
from tests.support.frontend_peers import TIMEOUT, Frontend, Message, Peers, running, say, silent
from tests.support.waiting import wait_until
from transport.key_file import new_key
from transport.tls import TlsError, pinned_context, server_context

BODY: dict[str, Any] = {"prompt": "A"}
PATH = "/v1/completions"
ORIGIN = "https://chat.example"
HEAD_SECONDS, BODY_SECONDS, CONNECTIONS = 0.4, 0.4, 12


class Site:
    """The frontend under test with what it was given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "keys"
        made = {name: new_key(name, tenant, admin=name == "boss") for name, tenant in (("alice", None), ("bob", "team"), ("boss", None))}
        self.keys = {name: key for name, (key, _) in made.items()}
        self.lines = {name: line.text() for name, (_, line) in made.items()}
        self.certificate, self.key = make_certificate(folder, "first")
        self.write(*self.lines.values())
        self.frontend: Frontend
        self.peers: Peers

    def write(self, *lines: str) -> None:
        temporary = self.folder / "new"
        temporary.write_text("\n".join(lines) + "\n")
        temporary.chmod(0o600)
        temporary.rename(self.file)

    def as_(self, name: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.keys[name]}"}

    def get(self, path: str, name: str, method: str = "GET") -> tuple[int, Any]:
        status, _, body = self.frontend.call(method, path, headers=self.as_(name))
        return status, json.loads(body)

    def post(self, name: str, *headers: str) -> bytes:
        """The bytes of a completion request."""
        body = json.dumps(BODY)
        lines = [f"POST {PATH} HTTP/1.1", "Host: x", f"Authorization: Bearer {self.keys[name]}", f"Content-Length: {len(body)}", *headers]
        return "\r\n".join([*lines, "", body]).encode()

    def open(self, request: bytes = b"") -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.frontend.port), timeout=TIMEOUT)
        connection = pinned_context(self.certificate).wrap_socket(plain)
        connection.sendall(request)
        return connection


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with tempfile.TemporaryDirectory(prefix="pw-") as folder:
        site = Site(Path(folder))
        options: dict[str, Any] = {
            "api_keys": str(site.file), "tls_cert": str(site.certificate), "tls_key": str(site.key), "cors_origins": (ORIGIN,),
            "max_connections": CONNECTIONS, "head_seconds": HEAD_SECONDS, "body_seconds": BODY_SECONDS, "refresh_seconds": 0.1, "log_level": "debug",
        }  # fmt: skip
        with running(Path(folder), **options) as (site.frontend, site.peers):
            yield site


@pytest.fixture(autouse=True)
def quiet(site: Site) -> None:
    site.peers.script = say("Hello")
    while not site.peers.received.empty():
        site.peers.received.get_nowait()


def answer(connection: socket.socket) -> tuple[int, dict[str, str], Any]:
    """What comes until the server closes the connection; status 0 for nothing."""
    said = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while got := connection.recv(65536):
            said += got
    head, _, body = said.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]) if first else 0, headers, json.loads(body) if body else None


ROUTES = [
    ("GET", "/"), ("GET", "/version"), ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/v1/models"), ("GET", "/v1/models/tiny"),
    ("GET", "/v1/requests"), ("GET", "/v1/requests/x"), ("DELETE", "/v1/requests"), ("DELETE", "/v1/requests/x"),
    ("POST", "/tokenize"), ("POST", "/detokenize"),
    ("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("POST", "/v1/embeddings"), ("GET", "/nowhere"), ("PUT", "/v1/models"),
    ("GET", "/health/"), ("GET", "/health/../v1/models"), ("GET", "//health"), ("GET", "/health/live/%2e%2e/%2e%2e/v1/models"), ("OPTIONS", PATH),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_needs_a_key(site: Site, method: str, path: str) -> None:
    for headers in ({}, {"Authorization": f"Bearer {site.keys['alice'][:-1]}"}, {"x-api-key": "wrong"}):
        status, got, body = site.frontend.call(method, path, b"{}" if method == "POST" else None, headers)
        assert (status, got["www-authenticate"], got["content-type"]) == (401, 'Bearer realm="pagewire"', "application/json")
        error = json.loads(body)["error"]
        assert (error["type"], error["param"]) == ("authentication_error", None)
        assert error["code"] == ("invalid_api_key" if headers else "missing_api_key")
    assert site.peers.received.empty()


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/health/startup", "/metrics"])
def test_health_and_metrics_need_none(site: Site, path: str) -> None:
    assert site.frontend.get(path)[0] == 200


def test_a_key_is_taken_in_either_header_and_names_the_tenant(site: Site) -> None:
    for headers, tenant in ((site.as_("alice"), "alice"), ({"x-api-key": site.keys["bob"]}, "team")):
        assert site.frontend.post(PATH, BODY, headers)[0] == 200
        assert site.peers.expect(Generate).tenant == tenant
        assert site.frontend.post("/v1/embeddings", {"input": "A"}, headers)[0] == 200
        assert site.peers.expect(Generate).tenant == tenant


def runs_on(message: Message) -> Iterator[FromTokenizer]:
    """No request ends, and the scheduler has nothing to say of any."""
    if isinstance(message, Explain):
        yield Explained(key=message.key, frontend=message.frontend, standings=[])


def test_a_key_cancels_all_of_its_own_and_an_administrator_everybodys(site: Site) -> None:
    site.peers.script = runs_on
    aborted = site.frontend.metric("request_success_total", finished_reason="abort")
    with site.open(site.post("alice")) as hers, site.open(site.post("bob")) as his:
        running = {generate.tenant: generate.keys for generate in (site.peers.expect(Generate), site.peers.expect(Generate))}
        _, _, body = site.frontend.post("/v1/responses", {"input": "A", "background": True}, site.as_("bob"))
        behind = site.peers.expect(Generate).keys
        for keys in (*running.values(), behind):
            site.peers.send(Started(keys[0], 1))
        wait_until(lambda: [card["state"] for card in site.get("/v1/requests", "boss")[1]["data"]] == ["waiting"] * 3)
        assert site.get("/v1/requests/", "boss", "DELETE")[0] == 404  # no name is not every name
        assert site.get("/v1/requests?all=1", "boss", "DELETE")[0] == 400
        for who, cancelled, gone in (("alice", 1, [running["alice"]]), ("boss", 2, [behind, running["team"]]), ("boss", 0, [])):
            assert site.get("/v1/requests", who, "DELETE") == (200, {"object": "requests.cancelled", "cancelled": cancelled, "unanswered": []})
            assert sorted(site.peers.expect(Cancel).keys for _ in gone) == sorted(gone)
        for connection in (hers, his):
            assert b" 499 " in connection.recv(100)
    assert site.get(f"/v1/responses/{body['id']}", "bob")[1]["status"] == "cancelled"
    site.frontend.wait_metric("request_success_total", aborted + 3, finished_reason="abort")


def test_requests_belong_to_their_key(site: Site) -> None:
    site.peers.script = runs_on
    with site.open(site.post("alice", "X-Request-Id: mine")) as connection:
        keys = site.peers.expect(Generate).keys
        listed = {name: site.get("/v1/requests", name)[1]["data"] for name in site.keys}
        assert [len(listed[name]) for name in ("alice", "bob", "boss")] == [1, 0, 1]
        card = listed["boss"][0]
        assert card["key"] == "alice"
        for name in (card["id"], "mine"):
            assert site.get(f"/v1/requests/{name}", "alice")[0] == 200
            for method in ("GET", "DELETE"):
                status, answer = site.get(f"/v1/requests/{name}", "bob", method)
                assert (status, answer["error"]["code"]) == (404, "request_not_found")
        assert site.get(f"/v1/requests/{card['id']}", "boss", "DELETE")[0] == 200
        assert site.peers.expect(Cancel).keys == keys
        assert b" 499 " in connection.recv(100)
    assert site.get("/v1/requests/mine", "bob")[0] == 404  # nor when it is over
    assert site.get("/v1/requests/mine", "alice")[1]["state"] == "cancelled"


def test_the_file_of_keys_is_read_again(site: Site) -> None:
    carol, line = new_key("carol")
    headers = {"x-api-key": carol}
    assert site.frontend.call("GET", "/version", headers=headers)[0] == 401
    site.write(*site.lines.values(), line.text())
    wait_until(lambda: site.frontend.call("GET", "/version", headers=headers)[0] == 200, "the new key was never taken")
    site.write("this is " + carol)
    wait_until(lambda: "4 keys read before stay" in site.frontend.log(), "the log says nothing of the bad file")
    assert site.frontend.call("GET", "/version", headers=headers)[0] == 200
    site.write(*site.lines.values())
    wait_until(lambda: site.frontend.call("GET", "/version", headers=headers)[0] == 401, "the key was never given up")
    assert carol not in site.frontend.log()


def test_no_key_is_ever_said(site: Site) -> None:
    """Not in the log at its most talkative, in errors, in metrics or in the process table."""
    key = site.keys["alice"]
    bearer = f"Authorization: Bearer {key}".encode()
    said = []
    for request in (
        b"GET /nowhere HTTP/1.1\r\nHost: x\r\n" + bearer + b"\r\nConnection: close\r\n\r\n",
        b"GET /version HTTP/1.1\r\nHost: x\r\n" + bearer + b"\x00\r\n\r\n",
        b"GET /version HTTP/1.1\r\n" + bearer + b"\r\n broken\x01: x\r\n\r\n",
        b"GET /version HTTP/1.1\r\nHost: x\r\n" + bearer + b"A" * 20_000 + b"\r\n\r\n",
        b"GET /version?api_key=" + key.encode() + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /version HTTP/1.1\r\nHost: x\r\n" + bearer + b"x\r\nConnection: close\r\n\r\n",
        bearer + b"\r\n\r\n",
    ):
        with site.open(request) as connection:
            status, _, body = answer(connection)
            assert status in (400, 401, 404, 431), request
            said.append(json.dumps(body))
    pid = site.frontend.process.pid
    process = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")).decode()
    for text in (site.frontend.log(), "".join(said), site.frontend.get("/metrics")[2].decode(), process):
        assert key[-43:] not in text


def test_tls_is_modern(site: Site) -> None:
    with site.open() as connection:
        assert connection.version() in ("TLSv1.2", "TLSv1.3")
    context = pinned_context(site.certificate)
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    with socket.create_connection(("127.0.0.1", site.frontend.port), timeout=TIMEOUT) as plain, pytest.raises(OSError, match=r"alert|reset|protocol"):
        context.wrap_socket(plain)
    with socket.create_connection(("127.0.0.1", site.frontend.port), timeout=TIMEOUT) as plain:
        plain.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" not in plain.recv(100)
    assert "Traceback" not in site.frontend.log()


def test_the_certificate_is_read_again(site: Site) -> None:
    first = site.certificate.read_bytes(), site.key.read_bytes()
    second = [path.read_bytes() for path in make_certificate(site.folder, "second")]

    def shown(context: ssl.SSLContext) -> bool:
        with socket.create_connection(("127.0.0.1", site.frontend.port), timeout=TIMEOUT) as plain:
            try:
                context.wrap_socket(plain).close()
            except ssl.SSLError:
                return False
            return True

    before = pinned_context(site.certificate)
    with site.open() as kept:
        site.key.write_bytes(second[1])  # a moment in which the files do not belong together
        wait_until(lambda: "the certificate read before stays" in site.frontend.log(), "the log says nothing of the bad files")
        assert shown(before)
        site.certificate.write_bytes(second[0])
        wait_until(lambda: shown(pinned_context(site.certificate)), "the new certificate was never shown")
        assert not shown(before)
        kept.sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")  # and no connection has suffered
        assert b" 200 " in kept.recv(100)
    site.certificate.write_bytes(first[0])
    site.key.write_bytes(first[1])
    wait_until(lambda: shown(before), "the first certificate did not come back")


def test_unfit_keys_of_certificates_are_refused(tmp_path: Path) -> None:
    locked = make_certificate(tmp_path, "locked", "-passout", "pass:secret")
    with pytest.raises(TlsError, match="passphrase"):
        server_context(*locked)
    certificate, key = make_certificate(tmp_path, "open")
    key.chmod(0o644)
    with pytest.raises(TlsError, match="chmod 600"):
        server_context(certificate, key)
    key.chmod(0o600)
    with pytest.raises(TlsError, match="belong together"):
        server_context(locked[0], key)
    for missing in ((tmp_path / "none", key), (certificate, tmp_path / "none")):
        with pytest.raises(TlsError, match="No such file"):
            server_context(*missing)


def test_pages_of_the_origin_may_read_answers(site: Site) -> None:
    asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-stainless-os"}
    status, headers, _ = site.frontend.call("OPTIONS", PATH, headers=asked)
    assert (status, headers["access-control-allow-origin"]) == (204, ORIGIN)
    assert headers["access-control-allow-headers"] == "authorization,x-stainless-os"
    assert "POST" in headers["access-control-allow-methods"]
    for name, expected in (("alice", 200), (None, 401)):
        status, headers, _ = site.frontend.call("GET", "/v1/models", headers={"Origin": ORIGIN, **(site.as_(name) if name else {})})
        assert (status, headers["access-control-allow-origin"], headers["vary"]) == (expected, ORIGIN, "Origin")
    assert "access-control-allow-credentials" not in headers
    odd = {**asked, "Access-Control-Request-Headers": "a b\x7f"}
    assert "access-control-allow-headers" not in site.frontend.call("OPTIONS", PATH, headers=odd)[1]


@pytest.mark.parametrize("origin", ["https://evil.example", "https://chat.example.evil", "http://chat.example", "null", ORIGIN + "/"])
def test_other_pages_may_not(site: Site, origin: str) -> None:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    for method, path, headers in (("OPTIONS", PATH, asked), ("GET", "/v1/models", {"Origin": origin, **site.as_("alice")})):
        got = site.frontend.call(method, path, headers=headers)[1]
        assert not [name for name in got if name.startswith("access-control")]


def test_headers_that_do_not_come_to_an_end_are_408(site: Site) -> None:
    began = time.monotonic()
    with site.open(b"GET /version HTTP/1.1\r\nHost:") as connection:
        status, headers, body = answer(connection)
    assert (status, body["error"]["code"], headers["connection"]) == (408, "timeout", "close")
    assert HEAD_SECONDS * 0.9 < time.monotonic() - began < 20


def test_headers_in_drops_are_408_too(site: Site) -> None:
    used = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    for before, begin in ((b"", b"GET /health/live HTTP/1.1\r\nHost: x\r\nA: "), (used, b"GET /")):
        with site.open(before) as connection:
            if before:
                assert b" 200 " in connection.recv(1000)
            began = time.monotonic()
            connection.sendall(begin)
            while not select.select([connection], [], [], 0.02)[0]:
                connection.sendall(b"a")
                assert time.monotonic() - began < 10, "drops keep the connection open"
            assert answer(connection)[0] == 408


def test_a_body_that_does_not_come_is_408(site: Site) -> None:
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {site.keys['alice']}\r\nContent-Length: 100\r\n\r\n"
    with site.open(head.encode() + b"{") as connection:
        assert b" 408 " in connection.recv(1000)


def test_a_slow_answer_is_no_slow_request(site: Site) -> None:
    site.peers.script = silent
    with site.open(site.post("alice")) as connection:
        asked = site.peers.expect(Generate)
        time.sleep(2 * HEAD_SECONDS)
        for message in say("late")(asked):
            site.peers.send(message)
        assert b" 200 " in connection.recv(1000)


def test_connections_are_limited(site: Site) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(site.open()) for _ in range(CONNECTIONS)]
        with site.open() as extra:
            status, headers, body = answer(extra)
        assert (status, headers["retry-after"], body["error"]["code"]) == (503, "1", "too_many_connections")
        held[0].sendall(b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in held[0].recv(100)
        held[1].close()
        wait_until(lambda: _is_served(site), "a place that was given up was never given out again")


def _is_served(site: Site) -> bool:
    try:
        return site.frontend.get("/health/live")[0] == 200
    except OSError:
        return False


def test_a_port_scan_leaves_no_traceback(site: Site) -> None:
    for junk in (b"", b"\x16\x03\x01\x00\x00", os.urandom(200)):
        with socket.create_connection(("127.0.0.1", site.frontend.port), timeout=TIMEOUT) as plain:
            plain.sendall(junk)
    wait_until(lambda: _is_served(site), "the frontend is gone")
    assert "Traceback" not in site.frontend.log()


def test_idle_connections_are_closed() -> None:
    request = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    with tempfile.TemporaryDirectory(prefix="pw-") as folder, running(Path(folder), idle_seconds=0.3) as (frontend, _):
        for before in (b"", request):
            with socket.create_connection(("127.0.0.1", frontend.port), timeout=TIMEOUT) as connection:
                connection.sendall(before)
                if before:
                    assert b" 200 " in connection.recv(1000)
                assert connection.recv(1000) == b""


@pytest.mark.slow
def test_handshakes_that_do_not_come_to_an_end_are_cut(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.frontend.port), timeout=30) as connection:
        connection.sendall(b"\x16\x03\x01\x02\x00")
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while connection.recv(1000):
                pass
        assert time.monotonic() - began < 20
