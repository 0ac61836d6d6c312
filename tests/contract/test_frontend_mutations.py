"""The frontend process and bodies that are almost right: thousands of them, and it neither ends nor grows nor says what it should not."""

import http.client
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.frontend_peers import Frontend, Peers, running

BODIES: dict[str, list[Any]] = {
    "/v1/chat/completions": [
        {"messages": [{"role": "user", "content": "A"}], "max_tokens": 5, "temperature": 0.5, "stop": ["x"], "logprobs": True, "n": 2},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "A"}]}], "stream": True, "stream_options": {"include_usage": True}},
    ],
    "/v1/completions": [
        {"prompt": "A", "seed": 1, "logit_bias": {"1": -100}, "bad_words": ["x"], "allowed_token_ids": [1, 2], "cache_salt": "s", "echo": True},
        {"prompt": [[1, 2], [3]], "stop_token_ids": [1], "min_tokens": 1, "priority": -1, "logprobs": 1, "stream": True},
    ],
    "/v1/responses": [
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "A"}]}], "instructions": "I", "metadata": {"a": "b"}, "top_k": 3},
        {"input": "A", "stream": True, "store": False, "max_output_tokens": 5, "text": {"format": {"type": "text"}}, "tools": []},
    ],
    "/v1/embeddings": [{"input": ["A", "B"], "encoding_format": "base64", "pooling": "last"}],
    "/tokenize": [{"prompt": "A", "return_token_strs": True}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
}
BITS = (b"{", b"}", b"[", b"]", b'"', b",", b":", b"null", b"1e999", b"-", b"\\u0000", b"\\ud800", b"\xff", b"\0", b"9" * 400, b"[" * 2000, b'"x":')
ALLOWED = {200, 400, 404, 413, 415}


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Frontend, Peers]]:
    with tempfile.TemporaryDirectory(prefix="pw-") as folder, running(Path(folder)) as pair:
        yield pair


def mutated(pick: random.Random) -> tuple[str, bytes, dict[str, str]]:
    """Path, body and headers of a request."""
    path = pick.choice(list(BODIES))
    body = bytearray(json.dumps(pick.choice(BODIES[path])).encode())
    for _ in range(pick.randint(1, 4)):
        at = pick.randrange(len(body) + 1)
        way = pick.randrange(5)
        if way == 0 and body:
            body[at % len(body)] ^= 1 << pick.randrange(8)
        elif way == 1:
            body[at : at + pick.randint(0, 6)] = pick.choice(BITS)
        elif way == 2:
            del body[at : at + pick.randint(1, 20)]
        elif way == 3:
            body[at:at] = body[pick.randrange(len(body) + 1) :][:200]
        else:
            body[at:] = json.dumps(pick.choice(pick.choice(list(BODIES.values())))).encode()[pick.randrange(30) :]
    headers = {"Content-Type": pick.choice(("application/json", "text/plain", ""))}
    if pick.random() < 0.05:
        headers["Content-Encoding"] = pick.choice(("gzip", "deflate", "br"))
    return path, bytes(body), headers


@pytest.mark.parametrize("count", [400, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_mutated_bodies(pair: tuple[Frontend, Peers], count: int) -> None:
    frontend, peers = pair
    pick = random.Random(count)
    process = psutil.Process(frontend.process.pid)
    connection = http.client.HTTPConnection("127.0.0.1", frontend.port, timeout=20)
    memory = 0
    for number in range(count):
        path, body, headers = mutated(pick)
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        said = response.read()
        assert response.status in ALLOWED, (path, body, said)
        if response.status != 200:
            assert set(json.loads(said)["error"]) == {"message", "type", "param", "code"}
        if number == min(count // 2, 2000):  # after it has seen everything once
            memory = process.memory_info().rss
    connection.close()
    assert process.memory_info().rss - memory < 30 << 20
    frontend.wait_metric("frontend_live_sequences", 0)
    assert frontend.post("/v1/completions", {"prompt": "A"})[0] == 200
    assert "Traceback" not in frontend.log()
    peers.received.queue.clear()
