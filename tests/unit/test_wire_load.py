"""The cheap load generator: events are counted however the bytes are cut, and what goes wrong is told."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from launcher.errors import LauncherError
from launcher.load import Outcome
from launcher.wire_load import Load

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"


def event(text: bytes) -> bytes:
    return b'data: {"id":"x","choices":[{"index":0,"text":"%b","finish_reason":null}],"usage":null}\n\n' % text


@contextlib.contextmanager
def answering(answer: bytes, cut: int) -> Iterator[tuple[str, int]]:
    """A server that answers one request with these bytes, `cut` at a time, and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while b"the body" not in connection.recv(65536):
                    pass
                for begin in range(0, len(answer), cut):
                    connection.sendall(answer[begin : begin + cut])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()
        thread.join(timeout=60)


def outcome_of(answer: bytes, cut: int = 1 << 20) -> tuple[Outcome, Load]:
    with answering(answer, cut) as address:
        load = Load(address, [b"the body"], 60.0, lambda: None)
        load.run()
    (outcome,) = load.outcomes
    return outcome, load


@pytest.mark.parametrize("cut", [1, 7, 64, 1 << 20])
def test_events_are_counted_wherever_the_bytes_are_cut(cut: int) -> None:
    odd = rb"\"choices\":[{ data: [DONE] \n\n"
    outcome, load = outcome_of(HEAD + event(b"a") + event(odd) + event(b" @1") + USAGE + DONE, cut)
    assert (outcome.error, outcome.texts, outcome.tokens, outcome.prompt_tokens) == (None, 3, 3, 7)
    assert outcome.first is not None
    assert outcome.sent <= outcome.first <= outcome.ended
    assert len(outcome.gaps) < 3
    assert len(load.delays) <= 1
    assert load.seconds > 0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n", "HTTP 503"),
        (b"not http\r\n\r\n", "HTTP error"),
        (HEAD + event(b"a"), "stream cut"),
        (HEAD + event(b"a") + b'data: {"error":{"code":"cancelled"}}\n\n' + DONE, "stream error cancelled"),
    ],
)
def test_what_goes_wrong(answer: bytes, error: str) -> None:
    assert outcome_of(answer)[0].error == error


def test_a_server_that_says_nothing_is_not_waited_for_for_ever() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(LauncherError, match="had not ended"):
        Load(listener.getsockname(), [b"x"], 0.1, lambda: None).run()


def test_one_more_request_comes_later() -> None:
    with answering(HEAD + USAGE + DONE, 1 << 20) as address:
        load = Load(address, [], 60.0, lambda: None, later=(0.1, b"the body"))
        load.run()
    assert load.outcomes[0].error is None
    assert load.outcomes[0].texts == 0
