"""The table of requests in `cluster status`, and asking for it."""

import argparse
import http.server
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher import cancel, live
from launcher.errors import LauncherError
from launcher.live import MAX_ROWS, live_requests, requests_table
from launcher.rundir import Cluster, ClusterInfo
from messages.cluster import ClusterState, ProcessState


def state(phase: str = "ready") -> ClusterState:
    frontend = ProcessState(name="frontend0", incarnation=1, pid=7, phase=phase)
    return ClusterState(ready=True, phase="ready", reason="", model="m", started=0.0, processes=[frontend])


def at(url: str) -> Cluster:
    return Cluster(Path("/nowhere"), ClusterInfo(pid=0, host="", port=0, url=url, model="m", started=0.0))


def choice(state: str, index: int = 0, **more: Any) -> dict[str, Any]:
    names = ("place", "waits_for", "preemptions", "prompt_tokens", "cached_tokens", "computed_tokens", "first_token_seconds")
    return {"index": index, "state": state, "age_seconds": 1.25, "generated_tokens": 0, **dict.fromkeys(names), **more}


def request(name: str, *choices: dict[str, Any], note: str | None = None) -> dict[str, Any]:
    return {"id": name, "choices": list(choices), "note": note}


def test_the_table_has_running_ones_first_and_then_the_line() -> None:
    second = choice("waiting", place=2, waits_for="turn", prompt_tokens=30, preemptions=1)
    first = choice("waiting", place=1, waits_for="slot", prompt_tokens=20, first_token_seconds=2.0)
    two = [choice("decode", 0, prompt_tokens=9, cached_tokens=4, computed_tokens=12, generated_tokens=3), choice("prefill", 1, prompt_tokens=9)]
    data = [request("c", choice("encoding"), note="No answer."), request("b", second), request("a", first), request("d", *two)]
    lines = requests_table({"data": data}).splitlines()
    assert lines[0].split("  ")[0] == "REQUEST"
    assert [line.split()[:2] for line in lines[1:-1]] == [["d", "[0]"], ["d", "[1]"], ["a", "waiting"], ["b", "waiting"], ["c", "encoding"]]
    assert lines[1].split()[2:] == ["decode", "-", "-", "1.2", "s", "9", "4", "12", "3", "-", "-"]
    assert lines[3].split()[1:4] == ["waiting", "1", "slot"]
    assert lines[3].endswith("in 2.0 s")
    assert lines[-1] == "No answer."


def test_a_long_table_is_cut() -> None:
    data = [request(f"r{number}", choice("decode")) for number in range(MAX_ROWS + 1)]
    assert requests_table({"data": data}).splitlines()[-1] == f"... and more: {MAX_ROWS} are shown"
    assert requests_table({"data": data[:1], "has_more": True}).splitlines()[-1] == "... and more: 1 are shown"
    assert requests_table({"data": []}) == ""


def test_whose_requests_are_not_known_is_said() -> None:
    said = "frontend1 and frontend2 did not answer: what they have is not shown"
    silent = {"unanswered": ["frontend1", "frontend2"]}
    assert requests_table({"data": [], **silent}) == said
    assert requests_table({"data": [request("a", choice("decode"))], **silent}).splitlines()[-1] == said


class Played(http.server.BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        server: Any = self.server
        self.send_response(server.status)
        self.end_headers()
        self.wfile.write(server.body)

    def do_DELETE(self) -> None:
        self.do_GET()


@pytest.fixture
def server() -> Iterator[Any]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Played) as played:
        thread = threading.Thread(target=played.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield played
        played.shutdown()
        thread.join(timeout=60)


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (200, b'{"data": []}', {"data": []}),
        (200, b'{"data": 5}', None),
        (200, b"[]", None),
        (200, b"<html>", None),
        (503, b'{"error": {"message": "not ready"}}', None),
        (404, b"", None),
    ],
)
def test_what_is_no_answer_is_absent(server: Any, status: int, body: bytes, found: Any) -> None:
    server.status, server.body = status, body
    url = f"http://127.0.0.1:{server.server_address[1]}"
    assert live_requests(at(url), state()) == found
    assert live_requests(at(url), state("loading")) is None


def test_a_server_that_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PATIENCE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert live_requests(at(url), state()) is None
    assert live_requests(at(url), state()) is None  # and one that is gone


def test_a_connection_that_breaks_off_is_absent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_half() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + json.dumps({"data": []}).encode())

        thread = threading.Thread(target=answer_half, daemon=True)
        thread.start()
        assert live_requests(at(f"http://127.0.0.1:{listener.getsockname()[1]}"), state()) is None
        thread.join(timeout=60)


@pytest.mark.parametrize(
    ("status", "body", "names", "code", "said"),
    [
        (200, b'{"cancelled": 1, "unanswered": []}', [], 0, "cancelled 1 request\n"),
        (200, b'{"cancelled": 2, "unanswered": ["frontend1"]}', [], 1, "cancelled 2 requests\n"),
        (200, b'{"id": "cmpl-1", "state": "finished"}', ["cmpl-1"], 0, "cmpl-1: finished\n"),
        (404, b'{"error": {"message": "no such request"}}', ["a/b", "c"], 1, "a/b: no such request runs or has ended lately\nc: no such request"),
    ],
)
def test_cancelling_says_what_became_of_each(
    server: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: int, body: bytes, names: list[str], code: int, said: str
) -> None:
    server.status, server.body = status, body
    monkeypatch.setattr(cancel, "choose_cluster", lambda port: at(f"http://127.0.0.1:{server.server_address[1]}"))
    assert cancel.run(argparse.Namespace(request=names, all=not names, port=None)) == code
    assert capsys.readouterr().out.startswith(said)


@pytest.mark.parametrize(("names", "everything"), [([], False), (["cmpl-1"], True)])
def test_either_names_are_cancelled_or_all(names: list[str], everything: bool) -> None:
    with pytest.raises(LauncherError, match="--all") as refused:
        cancel.run(argparse.Namespace(request=names, all=everything, port=None))
    assert refused.value.code == 2


def test_a_server_that_cannot_cancel_says_why(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server.status, server.body = 500, b'{"error": {"message": "broken"}}'
    monkeypatch.setattr(cancel, "choose_cluster", lambda port: at(f"http://127.0.0.1:{server.server_address[1]}"))
    with pytest.raises(LauncherError, match="broken"):
        cancel.run(argparse.Namespace(request=["cmpl-1"], all=False, port=None))
