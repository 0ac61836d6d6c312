"""`generate` and `chat` against a small HTTP server played by the test: requests sent, text shown, errors told."""

import http.server
import io
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.chat import PALE, PLAIN, Conversation, Voice
from launcher.cli import main
from launcher.client import Client

END = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "text": ""}]}


class Played(http.server.BaseHTTPRequestHandler):
    """Answers with the events or the error set on the server; keeps the bodies it got."""

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._answer(200, json.dumps({"data": [{"id": "played"}]}).encode())

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.bodies.append((self.path, body))
        if server.error is not None:
            self._answer(*server.error)
        elif body.get("stream"):
            lines = [b": ping\n\n", *(b"data: " + json.dumps(event).encode() + b"\n\n" for event in server.events), *server.tail]
            self._answer(200, b"".join(lines))
        else:
            self._answer(200, json.dumps({"whole": True}).encode())

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(data)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Played)
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.events: list[dict[str, Any]] = []
        self.error: tuple[int, bytes] | None = None
        self.tail = [b"data: [DONE]\n\n"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def say(self, *pieces: str) -> None:
        """The next answers are these pieces, whatever the endpoint."""
        self.events = [*({"choices": [{"index": 0, "delta": {"content": piece}, "text": piece, "finish_reason": None}]} for piece in pieces), END]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_generate_streams_the_text(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.say("one", " two", "\u00e9")
    assert main(["generate", "count", "--url", server.url, "--max-tokens", "5", "--temperature", "0", "--stop", "x", "--ignore-eos"]) == 0
    assert capsys.readouterr().out == "one two\u00e9\n"
    path, body = server.bodies[0]
    assert path == "/v1/completions"
    assert body == {"model": "played", "prompt": "count", "max_tokens": 5, "temperature": 0, "stop": ["x"], "ignore_eos": True, "stream": True}


def test_generate_as_chat_from_standard_input(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    server.say("yes\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"well?")))
    assert main(["generate", "-", "--chat", "--system", "be brief", "--url", server.url + "/v1/"]) == 0
    assert capsys.readouterr().out == "yes\n"
    path, body = server.bodies[0]
    assert path == "/v1/chat/completions"
    assert body["messages"] == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "well?"}]


def test_generate_from_standard_input_that_is_no_text(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert main(["generate", "-", "--url", server.url]) == 1
    assert capsys.readouterr().err == "error: standard input is not UTF-8\n"


def test_generate_json_is_the_whole_answer(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "x", "--json", "--url", server.url]) == 0
    assert json.loads(capsys.readouterr().out) == {"whole": True}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ((400, b'{"error": {"message": "the prompt is too long", "code": "context_length_exceeded"}}'), "the prompt is too long"),
        ((502, b"<html>"), "status 502"),
    ],
)
def test_errors_of_the_server(server: Server, error: tuple[int, bytes], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    server.error = error
    assert main(["generate", "x", "--url", server.url]) == 1
    assert message in capsys.readouterr().err


def test_an_error_inside_a_stream_and_a_stream_that_breaks_off(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.events = [{"error": {"message": "the worker was lost", "code": "worker_lost"}}]
    assert main(["generate", "x", "--url", server.url]) == 1
    server.say("a")
    server.tail = []
    assert main(["generate", "x", "--url", server.url]) == 1
    error = capsys.readouterr().err
    assert "the worker was lost" in error
    assert "ended the answer early" in error


def test_no_server(capsys: pytest.CaptureFixture[str], run_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGEWIRE_RUN_DIR", str(run_dir))
    assert main(["chat"]) == 1
    assert main(["generate", "x", "--url", "http://127.0.0.1:1"]) == 1
    assert main(["generate", "x", "--url", "ftp://host"]) == 1
    error = capsys.readouterr().err
    assert "cluster start" in error
    assert "cannot reach http://127.0.0.1:1" in error
    assert "not an http" in error


def test_chat_keeps_the_conversation_until_reset(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    server.say("Hi", "!")
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n\nagain\n/reset\nfresh\n/system be kind\nlast\n/what\n/help\n/exit\nnever\n"))
    assert main(["chat", "--url", server.url, "--temperature", "0"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "Hi!\n" * 4
    assert "/what is no command" in shown.err
    sent = [body["messages"] for _, body in server.bodies]
    hello, answer = {"role": "user", "content": "hello"}, {"role": "assistant", "content": "Hi!"}
    assert sent == [
        [hello],
        [hello, answer, {"role": "user", "content": "again"}],
        [{"role": "user", "content": "fresh"}],
        [{"role": "system", "content": "be kind"}, {"role": "user", "content": "last"}],
    ]


def test_chat_goes_on_after_an_error(server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    server.error = (400, b'{"error": {"message": "too long", "code": "context_length_exceeded"}}')
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    assert main(["chat", "--url", server.url]) == 0
    assert "too long (/reset starts afresh)" in capsys.readouterr().err
    assert [body["messages"] for _, body in server.bodies] == [[{"role": "user", "content": "one"}], [{"role": "user", "content": "two"}]]


def test_ctrl_c_stops_one_answer_only(server: Server) -> None:
    server.say("part", "rest")
    talk = Conversation(Client(server.url), "played", None, {})

    def interrupt(piece: str) -> None:
        raise KeyboardInterrupt

    assert talk.ask("go", interrupt) == "stopped"
    assert talk.messages[-1] == {"role": "assistant", "content": "part"}
    assert talk.ask("on", lambda piece: None) == "stop"
    assert len(talk.messages) == 4


def test_reasoning_is_shown_paler_and_not_kept(server: Server) -> None:
    thoughts = [{"choices": [{"index": 0, "delta": {"reasoning_content": text}, "finish_reason": None}]} for text in ("Hm", ".")]
    server.events = [*thoughts, {"choices": [{"index": 0, "delta": {"content": "Yes"}, "finish_reason": "stop"}]}]
    out = io.StringIO()
    voice = Voice(out)
    talk = Conversation(Client(server.url), "played", None, {})
    assert talk.ask("go", voice.say, voice.think) == "stop"
    voice.end()
    assert out.getvalue() == f"{PALE}Hm.{PLAIN}\n\nYes\n"
    assert talk.messages[-1] == {"role": "assistant", "content": "Yes"}
    voice.think("cut")
    voice.end()
    assert out.getvalue().endswith(f"{PALE}cut{PLAIN}\n")
