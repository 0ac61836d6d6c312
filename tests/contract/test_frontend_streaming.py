"""Streams whose texts come as one message a step: nothing is lost, mixed up or said twice, whoever reads how slowly."""

import http.client
import json
import socket
import time
from collections.abc import Iterable
from typing import Any

import pytest

from messages.request import Cancel, Generate
from messages.text import Ended, FromTokenizer, Started, TextDelta, Texts, TokenLogprob
from tests.support.frontend_peers import TIMEOUT, Frontend, Message, Peers, events, silent

Pair = tuple[Frontend, Peers]
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "A"}]}
WORDS = ["A", "ä€\U0001fae0", '"\\\n', "data: [DONE]\n\n", "\ue000", "", " end"]


def steps(message: Message) -> Iterable[FromTokenizer]:
    """Every choice says WORDS, all choices in one message a step."""
    if isinstance(message, Generate):
        keys = message.keys
        yield Started(keys[0], 5)
        for word in WORDS:
            yield Texts(keys, [word] * len(keys), [1] * len(keys))
        yield from (Ended(key=key, finish="length", text="!", tokens=1, completion_tokens=len(WORDS) + 1) for key in keys)


@pytest.mark.parametrize(("path", "body"), [(CHAT_PATH, CHAT), (TEXT_PATH, {"prompt": ["A", "B"]})], ids=["chat", "completions"])
def test_the_stream_is_the_whole_answer_in_pieces(ready: Pair, path: str, body: dict[str, Any]) -> None:
    frontend, peers = ready
    peers.script = steps
    request = {**body, "n": 2, "max_tokens": 8}
    whole = frontend.post(path, request)[2]
    *chunks, last, done = frontend.stream(path, {**request, "stream_options": {"include_usage": True}})
    assert done == "[DONE]"
    assert last["usage"] == whole["usage"]
    assert [chunk["usage"] for chunk in chunks] == [None] * len(chunks)
    for choice in whole["choices"]:
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        said = [part["text"] if "text" in part else part["delta"].get("content") or "" for part in mine]
        assert "".join(said) == "".join(WORDS) + "!" == (choice["text"] if "text" in choice else choice["message"]["content"])
        assert [text for text in said if text] == [*filter(None, WORDS), "!"]
        assert [part["finish_reason"] for part in mine] == [None] * (len(mine) - 1) + ["length"]


def test_texts_and_logprobs_keep_their_order(ready: Pair) -> None:
    frontend, peers = ready

    def script(message: Message) -> Iterable[FromTokenizer]:
        if isinstance(message, Generate):
            key = message.keys[0]
            yield Started(key, 1)
            yield Texts([key], ["a"], [1])
            yield TextDelta(key, "b", 1, [TokenLogprob(2, b"b", -0.5, [])])
            yield Texts([key], ["c"], [1])
            yield Ended(key=key, finish="stop", completion_tokens=3)

    peers.script = script
    *chunks, _ = frontend.stream(TEXT_PATH, {"prompt": "A", "logprobs": 1})
    parts = [chunk["choices"][0] for chunk in chunks]
    assert "".join(part["text"] for part in parts) == "abc"
    assert [part["text"] for part in parts if part["logprobs"] and part["logprobs"]["tokens"]] == ["b"]


def test_a_connection_serves_again_after_a_stream(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = steps
    connection = http.client.HTTPConnection("127.0.0.1", frontend.port, timeout=TIMEOUT)
    for _ in range(3):
        connection.request("POST", CHAT_PATH, json.dumps({**CHAT, "stream": True}), {"Content-Type": "application/json"})
        *chunks, done = events(connection.getresponse().read())
        assert done == "[DONE]"
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "".join(WORDS) + "!"
    connection.close()


def test_http_1_0_gets_the_events_without_chunks(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = steps
    raw = json.dumps({**CHAT, "stream": True}).encode()
    with socket.create_connection(("127.0.0.1", frontend.port), timeout=TIMEOUT) as connection:
        connection.sendall(b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (CHAT_PATH.encode(), len(raw)) + raw)
        answer = b""
        while got := connection.recv(65536):
            answer += got
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert events(body)[-1] == "[DONE]"


def test_a_slow_reader_gets_fewer_and_longer_events_and_all_of_the_text(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = silent
    count, generated = 20_000, frontend.metric("generation_tokens_total")
    with frontend.open(TEXT_PATH, {"prompt": "A", "stream": True, "max_tokens": count}) as slow:
        key = peers.expect(Generate).keys[0]
        peers.send(Started(key, 1))
        for number in range(count):
            peers.send(Texts([key], [f"{number:06d} " + "." * 500], [1]))
        frontend.wait_metric("generation_tokens_total", generated + count)
        peers.script = steps
        assert frontend.post(CHAT_PATH, CHAT)[0] == 200
        peers.send(Ended(key=key, finish="length", completion_tokens=count))
        answer = b""
        while b"data: [DONE]\n\n" not in answer[-64:]:
            answer += slow.recv(1 << 20)
    assert answer.count(b'"choices":[{') < count
    position = -1
    for number in range(count):
        position = answer.index(b"%06d " % number, position + 1)


def test_a_reader_that_stops_and_goes_is_cancelled(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = silent
    with frontend.open(TEXT_PATH, {"prompt": "A", "stream": True, "max_tokens": 100_000}):
        key = peers.expect(Generate).keys[0]
        peers.send(Started(key, 1))
        for _ in range(10_000):
            peers.send(Texts([key], ["." * 1000], [1]))
        frontend.wait_metric("frontend_live_sequences", 1)
    assert peers.expect(Cancel).keys == [key]
    frontend.wait_metric("frontend_live_sequences", 0)


def test_texts_of_unequal_columns_are_dropped_and_counted(ready: Pair) -> None:
    frontend, peers = ready
    peers.send(Texts([1, 2], ["x"], [1, 1]))
    peers.script = steps
    assert frontend.post(CHAT_PATH, CHAT)[0] == 200
    deadline = time.monotonic() + TIMEOUT
    while (report := peers.reports.get(timeout=TIMEOUT)).counters.get("bad_frames") != 1:
        assert time.monotonic() < deadline, report
