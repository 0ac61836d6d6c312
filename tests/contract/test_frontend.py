"""The frontend process alone over its real sockets: the test plays supervisor, tokenizer and client. Its life is in `test_frontend_life.py`."""

import json
import socket
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from messages.request import Cancel, Detokenize, Generate, TextPrompt, Tokenize, TokenPrompt
from messages.text import Begun, Ended, FromTokenizer, Problem, Started, TextDelta, TokenLogprob
from tests.support.frontend_peers import CONTEXT, MODEL, TIMEOUT, Frontend, Message, Peers, read_until, say, silent, start
from transport.columns import pack_f32

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "A"}]}
CHAT_PATH = "/v1/chat/completions"
TEXT_PATH = "/v1/completions"
Pair = tuple[Frontend, Peers]


def refuse(status: int, code: str, started: bool = False) -> Any:
    def script(message: Message) -> Iterable[FromTokenizer]:
        if isinstance(message, Generate):
            if started:
                yield Started(message.keys[0], 1)
            yield from (Ended(key=key, problem=Problem(status=status, code=code, message="no", param="prompt")) for key in message.keys)

    return script


def test_chat(ready: Pair) -> None:
    frontend, peers = ready
    status, _, answer = frontend.post(CHAT_PATH, {**CHAT, "model": MODEL, "temperature": 0, "seed": 7, "max_tokens": 9, "stop": "x", "n": 2})
    assert status == 200
    assert [choice["message"] for choice in answer["choices"]] == [{"role": "assistant", "content": "Hello world", "refusal": None}] * 2
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["stop", "stop"]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}
    sent: Generate = peers.expect(Generate)
    assert (sent.sampling.temperature, sent.seeds[0], sent.stop.max_tokens, sent.stop.strings, len(sent.keys)) == (0.0, 7, 9, ["x"], 2)


@pytest.mark.parametrize("options", [{}, {"stream_options": None}, {"stream_options": {}}, {"stream_options": {"include_usage": False}}])
def test_a_chat_stream_without_usage(ready: Pair, options: dict[str, Any]) -> None:
    *chunks, done = ready[0].stream(CHAT_PATH, {**CHAT, "n": 2, **options})
    assert done == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    assert chunks[0]["object"] == "chat.completion.chunk"
    assert not any("usage" in chunk for chunk in chunks)
    for index in (0, 1):
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert not any("role" in choice["delta"] for choice in choices[1:])
        assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hello world"
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


def test_a_chat_stream_with_usage(ready: Pair) -> None:
    *chunks, last, done = ready[0].stream(CHAT_PATH, {**CHAT, "n": 2, "stream_options": {"include_usage": True}})
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 4
    assert all(chunk["usage"] is None for chunk in chunks)


@pytest.mark.parametrize("path", [CHAT_PATH, TEXT_PATH])
def test_a_stream_with_usage_in_every_chunk(ready: Pair, path: str) -> None:
    body = {"prompt": "A"} if path == TEXT_PATH else CHAT
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, done = ready[0].stream(path, {**body, "n": 2, "stream_options": options})
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9, "prompt_tokens_details": {"cached_tokens": 0}}
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert all(chunk["usage"] == {"prompt_tokens": 5, "completion_tokens": n, "total_tokens": 5 + n} for chunk, n in zip(chunks, counts, strict=True))
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    if path == TEXT_PATH:
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"][0]["index"] == 1) == "Hello world"


def test_completions_with_many_prompts_are_indexed(ready: Pair) -> None:
    frontend, peers = ready
    status, _, answer = frontend.post(TEXT_PATH, {"prompt": ["B", "A"], "n": 2, "echo": True})
    assert status == 200
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 10
    first, second = peers.expect(Generate), peers.expect(Generate)
    assert [first.prompt, second.prompt] == [TextPrompt("B", True), TextPrompt("A", True)]
    assert first.echo
    assert first.stop.max_tokens == 16
    frontend.post(TEXT_PATH, {"prompt": [[1, 2], [3]], "add_special_tokens": False})
    assert [peers.expect(Generate).prompt, peers.expect(Generate).prompt] == [TokenPrompt([1, 2]), TokenPrompt([3])]
    chunks = frontend.stream(TEXT_PATH, {"prompt": ["B", "A"]})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks[:-1] if chunk["choices"][0]["index"] == 1) == "Hello world"


def test_logprobs_in_both_shapes(ready: Pair) -> None:
    frontend, peers = ready

    def script(message: Message) -> Iterable[FromTokenizer]:
        if isinstance(message, Generate):
            tokens = [TokenLogprob(1, b"a", -0.5, [(1, b"a", -0.5), (2, b"b", -1.5)]), TokenLogprob(2, b"b", float("-inf"), [(1, b"a", -0.5)])]
            yield Started(message.keys[0], 1)
            yield TextDelta(message.keys[0], "a", [7], tokens[:1])
            yield Ended(key=message.keys[0], finish="length", text="b", tokens=1, logprobs=tokens[1:], completion_tokens=2)

    peers.script = script
    chat = frontend.post(CHAT_PATH, {**CHAT, "logprobs": True, "top_logprobs": 2})[2]["choices"][0]
    assert [entry["token"] for entry in chat["logprobs"]["content"]] == ["a", "b"]
    assert chat["logprobs"]["content"][0]["top_logprobs"][1] == {"token": "b", "logprob": -1.5, "bytes": [98]}
    assert peers.expect(Generate).sampling.logprobs == 2
    text = frontend.post(TEXT_PATH, {"prompt": "A", "logprobs": 2})[2]["choices"][0]
    assert text["logprobs"] == {
        "tokens": ["a", "b"],
        "token_logprobs": [-0.5, -9999.0],
        "top_logprobs": [{"a": -0.5, "b": -1.5}, {"a": -0.5, "b": -9999.0}],
        "text_offset": [0, 1],
    }
    chunks = frontend.stream(TEXT_PATH, {"prompt": "A", "logprobs": 2})[:-1]
    assert [offset for chunk in chunks for offset in chunk["choices"][0]["logprobs"]["text_offset"]] == [0, 1]
    assert frontend.post(CHAT_PATH, {**CHAT, "top_logprobs": 1})[2]["error"]["param"] == "top_logprobs"


def test_models_tokens_version(ready: Pair) -> None:
    frontend, peers = ready
    models = json.loads(frontend.get("/v1/models")[2])
    assert [(card["id"], card["max_model_len"]) for card in models["data"]] == [(MODEL, CONTEXT)]
    assert json.loads(frontend.get(f"/v1/models/{MODEL}")[2]) == models["data"][0]
    assert frontend.get("/v1/models/a/b")[0] == 404
    assert frontend.post("/tokenize", {"prompt": "abc"})[2] == {"count": 3, "max_model_len": CONTEXT, "tokens": [1, 2, 3], "token_strs": None}
    assert peers.expect(Tokenize).prompt == TextPrompt("abc", True)
    assert frontend.post("/tokenize", {**CHAT, "return_token_strs": True})[2]["token_strs"] == ["a", "b", "c"]
    assert frontend.post("/detokenize", {"tokens": [1, 2, 3]})[2] == {"prompt": "abc"}
    assert peers.expect(Detokenize).ids == [1, 2, 3]
    assert frontend.post("/tokenize", {})[0] == 400
    assert "version" in json.loads(frontend.get("/version")[2])
    assert MODEL.encode() in frontend.get("/")[2]


@pytest.mark.parametrize("streamed", [False, True])
def test_every_error_has_the_one_shape(ready: Pair, streamed: bool) -> None:
    frontend, _ = ready
    extra = {"stream": streamed}
    cases: list[tuple[str, str, bytes, int, str | None]] = [
        ("POST", CHAT_PATH, b"", 400, None),
        ("POST", CHAT_PATH, b"[]", 400, None),
        ("POST", CHAT_PATH, b'{"messages": ', 400, None),
        ("POST", CHAT_PATH, b"[" * 10_000, 400, None),
        ("POST", CHAT_PATH, json.dumps({**CHAT, **extra, "model": "nope"}).encode(), 404, "model"),
        ("POST", CHAT_PATH, json.dumps({**CHAT, **extra, "what": 1}).encode(), 400, "what"),
        ("POST", CHAT_PATH, json.dumps({**CHAT, **extra, "max_tokens": -1}).encode(), 400, "max_tokens"),
        ("POST", TEXT_PATH, json.dumps({**extra, "prompt": []}).encode(), 400, "prompt"),
        ("POST", TEXT_PATH, json.dumps({**extra, "prompt": [[]]}).encode(), 400, "prompt"),
        ("POST", TEXT_PATH, json.dumps({**extra, "prompt": None}).encode(), 400, "prompt"),
        ("POST", TEXT_PATH, json.dumps({**extra, "prompt": "A", "suffix": "x"}).encode(), 400, "suffix"),
        ("POST", TEXT_PATH, json.dumps({**extra, "prompt": "A", "best_of": 3}).encode(), 400, "best_of"),
        ("POST", TEXT_PATH, json.dumps({**extra, "prompt": [1] * CONTEXT}).encode(), 400, "prompt"),
        ("POST", CHAT_PATH, json.dumps({**CHAT, **extra, "seed": -1}).encode(), 400, "seed"),
        ("POST", CHAT_PATH, json.dumps({**extra, "messages": [{"role": "user"}]}).encode(), 400, "messages[0].content"),
        ("POST", CHAT_PATH, json.dumps({**extra, "messages": ["A"]}).encode(), 400, "messages"),
        ("POST", TEXT_PATH, b"{}", 400, "prompt"),
        ("POST", "/tokenize", b"{}", 400, "prompt"),
        ("POST", "/detokenize", b'{"tokens": [-1]}', 400, "tokens"),
        ("POST", TEXT_PATH, b"x" * (2 << 20), 413, None),
        ("POST", "/nowhere", b"{}", 404, None),
        ("GET", CHAT_PATH, b"", 405, None),
        ("POST", "/v1/models", b"", 405, None),
    ]
    for method, path, body, status, param in cases:
        got, headers, answer = frontend.call(method, path, body)
        assert (got, path, body[:40]) == (status, path, body[:40])
        error = json.loads(answer)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["param"] == param
        assert error["message"][0].isupper() or error["message"].startswith(str(param)), error
        assert error["message"].endswith("."), error
        assert headers["x-request-id"]
        assert b"Traceback" not in answer
    assert frontend.post(CHAT_PATH, CHAT)[0] == 200


def test_request_ids_are_echoed_cut_and_cleaned(ready: Pair) -> None:
    frontend, _ = ready
    assert frontend.post(CHAT_PATH, CHAT, {"X-Request-Id": "abc-1"})[1]["x-request-id"] == "abc-1"
    assert frontend.post(CHAT_PATH, CHAT, {"X-Request-Id": "a" * 10_000})[1]["x-request-id"] == "a" * 128
    assert frontend.post(CHAT_PATH, CHAT, {"X-Request-Id": "a b<c>"})[1]["x-request-id"] == "a_b_c_"
    first = frontend.get("/health")[1]["x-request-id"]
    assert first != frontend.get("/health")[1]["x-request-id"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("started", [False, True])
def test_a_refusal_before_any_text_has_its_own_status(ready: Pair, streamed: bool, started: bool) -> None:
    frontend, peers = ready
    peers.script = refuse(429, "queue_full", started)
    for _ in range(5):
        status, headers, answer = frontend.call("POST", CHAT_PATH, json.dumps({**CHAT, "stream": streamed}).encode())
        assert b"queue_full" in answer
        if status == 429 or not (streamed and started):  # else a stream may have begun before the refusal came, on a machine that stood still
            break
    assert (status, headers["retry-after"]) == (429, "1")
    assert json.loads(answer)["error"] == {"message": "no", "type": "rate_limit_error", "param": "prompt", "code": "queue_full"}
    peers.script = refuse(400, "context_length_exceeded")
    assert frontend.post(TEXT_PATH, {"prompt": ["A", "B"], "stream": streamed})[0] == 400


def test_a_problem_in_mid_stream_is_an_event(ready: Pair) -> None:
    frontend, peers = ready

    def script(message: Message) -> Iterable[FromTokenizer]:
        if isinstance(message, Generate):
            yield Started(message.keys[0], 1)
            yield TextDelta(message.keys[0], "x", [7])

    peers.script = script
    with frontend.open(CHAT_PATH, {**CHAT, "stream": True}) as connection:
        head = read_until(connection, b'"content":"x"')
        assert b" 200 OK" in head
        key = peers.expect(Generate).keys[0]
        peers.send(Ended(key=key, problem=Problem(status=500, code="non_finite", message="bad numbers")))
        rest = read_until(connection, b"[DONE]")
        assert b'data: {"error":{"message":"bad numbers"' in rest


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("progress", ["unanswered", "started", "running"])
@pytest.mark.parametrize("reset", [False, True])
def test_a_client_that_goes_away_cancels(ready: Pair, streamed: bool, progress: str, reset: bool) -> None:
    frontend, peers = ready
    peers.script = silent
    aborted = frontend.metric("request_success_total", finished_reason="abort")
    started, tokens = frontend.metric("sequences_started_total"), frontend.metric("generation_tokens_total")
    connection = frontend.open(CHAT_PATH, {**CHAT, "stream": streamed, "n": 2})
    keys = peers.expect(Generate).keys
    if progress != "unanswered":
        peers.send(Started(keys[0], 1))
        peers.send(Begun(keys[:1], pack_f32([0.5]), pack_f32([0.5])))
        frontend.wait_metric("sequences_started_total", started + 2)
    if progress == "running":
        peers.send(TextDelta(keys[0], "x", [7]))
        frontend.wait_metric("generation_tokens_total", tokens + 1)
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    assert peers.expect(Cancel).keys == keys
    frontend.wait_metric("frontend_live_sequences", 0)
    assert frontend.metric("request_success_total", finished_reason="abort") == aborted + (0 if progress == "unanswered" else 2)


def test_malformed_frames_and_foreign_keys_harm_nobody(ready: Pair) -> None:
    frontend, peers = ready
    for frame in (b"", b"\xc1", b"\x80", b"x" * 1000, msgspec.msgpack.encode({"type": "delta", "key": "x"}), b"\x91" * 5000):
        peers.send(frame)
    peers.send(TextDelta(12345, "x", [7]))
    peers.send(Ended(key=12345, finish="stop"))
    peers.send(Started(12345, 5))
    assert frontend.post(CHAT_PATH, CHAT)[2]["choices"][0]["message"]["content"] == "Hello world"


def test_a_slow_reader_does_not_slow_others_and_loses_nothing(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = silent
    body = {**CHAT, "stream": True}
    with frontend.open(CHAT_PATH, body) as slow:
        key = peers.expect(Generate).keys[0]
        peers.send(Started(key, 1))
        for number in range(20_000):
            peers.send(TextDelta(key, f"{number:05d} " + "." * 100, [7]))
        peers.script = say("Hello", " world")
        assert frontend.post(CHAT_PATH, CHAT)[0] == 200
        peers.send(Ended(key=key, finish="stop", completion_tokens=20_000))
        answer = read_until(slow, b"[DONE]").decode()
    position = 0
    for number in range(0, 20_000, 500):
        position = answer.index(f"{number:05d} ", position)


def test_a_taken_port_is_one_sentence_and_exit_1(ready: Pair) -> None:
    with tempfile.TemporaryDirectory(prefix="pw-") as folder, tempfile.TemporaryFile("w+") as log:
        assert start(Path(folder), ready[0].port, 1 << 20, log).wait(timeout=TIMEOUT) == 1
        log.seek(0)
        text = log.read()
    assert "cannot listen on 127.0.0.1" in text
    assert "Traceback" not in text


def test_no_traceback_and_no_prompt_in_the_log(ready: Pair) -> None:
    frontend, _ = ready
    frontend.post(CHAT_PATH, {"messages": [{"role": "user", "content": "a secret"}]}, {"X-Request-Id": "logged-1"})
    log = frontend.log()
    assert "POST /v1/chat/completions 200" in log
    assert "logged-1" in log
    assert "secret" not in log
    assert "Traceback" not in log
