"""Requests explained and cancelled by their names, over the frontend's real sockets."""

import json
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from messages.explain import COMPUTED, DECODE, GOT_SLOT, MAX_KEYS, SLOT, WAITING, Explain, Explained, Life, Moment, Standing
from messages.request import Cancel, Generate
from messages.text import Ended, FromTokenizer, Problem, Started, TextDelta
from tests.support.frontend_peers import TIMEOUT, Frontend, Message, Peers, Script, cluster_state, running, silent
from tests.support.waiting import wait_until

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "A"}]}
CHAT_PATH = "/v1/chat/completions"
TEXT_PATH = "/v1/completions"
Pair = tuple[Frontend, Peers]


class Client:
    """One request on a thread of its own; `answer` is (status, headers, body) once it has ended."""

    def __init__(self, frontend: Frontend, path: str, body: dict[str, Any], name: str = "") -> None:
        self.answer: tuple[int, dict[str, str], bytes] = (0, {}, b"")
        self._thread = threading.Thread(target=self._run, args=(frontend, path, body, name), daemon=True)
        self._thread.start()

    def _run(self, frontend: Frontend, path: str, body: dict[str, Any], name: str) -> None:
        self.answer = frontend.call("POST", path, json.dumps(body).encode(), {"X-Request-Id": name} if name else {})

    def end(self) -> tuple[int, bytes]:
        self._thread.join(timeout=TIMEOUT)
        assert not self._thread.is_alive()
        return self.answer[0], self.answer[2]


def explained(*standings: dict[str, Any]) -> Script:
    """A script that never answers a Generate, and says these of the keys it is asked for, in their order."""

    def script(message: Message) -> Iterable[FromTokenizer]:
        if isinstance(message, Explain):
            told = [Standing(key=key, **standing) for key, standing in zip(message.keys, standings, strict=False)]
            yield Explained(key=message.key, frontend=message.frontend, standings=told)

    return script


def shown(frontend: Frontend, path: str = "") -> Any:
    status, _, body = frontend.get("/v1/requests" + path)
    assert status == 200, body
    return json.loads(body)


def card(frontend: Frontend, name: str) -> Any:
    """With what the scheduler says of it: it is asked again if this machine stands still for so long that nobody waits for its answer."""
    deadline = time.monotonic() + TIMEOUT
    while (found := shown(frontend, f"/{name}"))["note"] is not None:
        assert time.monotonic() < deadline, found
    return found


def listed(frontend: Frontend, query: str = "") -> Any:
    """As `card`."""
    deadline = time.monotonic() + TIMEOUT
    while True:
        found = shown(frontend, query)
        if all(entry["note"] is None for entry in found["data"]):
            return found
        assert time.monotonic() < deadline, found


def wait_for_card(frontend: Frontend, name: str, state: str) -> Any:
    deadline = time.monotonic() + TIMEOUT
    while True:
        status, _, body = frontend.get(f"/v1/requests/{name}")
        if status == 200 and (found := json.loads(body))["state"] == state and found["note"] is None:
            return found
        assert time.monotonic() < deadline, body
        time.sleep(0.02)


def test_an_unknown_request_is_404(ready: Pair) -> None:
    for method in ("GET", "DELETE"):
        status, _, body = ready[0].call(method, "/v1/requests/chatcmpl-0")
        error = json.loads(body)["error"]
        assert (status, error["code"], error["type"], error["param"]) == (404, "request_not_found", "invalid_request_error", "id")


def test_a_running_request_is_explained(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = explained(
        {
            "state": WAITING, "place": 3, "waits_for": SLOT, "prompt_tokens": 7, "preemptions": 1, "start_seconds": 0.98765,
            "first_token_seconds": 1.23456,
        },
        {"state": DECODE, "prompt_tokens": 7, "cached_tokens": 4, "computed_tokens": 9, "generated_tokens": 3},
    )  # fmt: skip
    client = Client(frontend, CHAT_PATH, {**CHAT, "n": 2, "priority": 5}, "it is/mine")
    keys = peers.expect(Generate).keys
    found = card(frontend, "it%20is%2Fmine")
    question = peers.expect(Explain)
    assert (question.frontend, question.keys, question.tokenizer) == ("frontend0", keys, "")
    assert (found["object"], found["request_id"], found["endpoint"], found["stream"], found["state"], found["note"]) == (
        "request",
        "it_is/mine",
        CHAT_PATH,
        False,
        DECODE,
        None,
    )
    assert found["id"].startswith("chatcmpl-")
    assert card(frontend, found["id"])["request_id"] == "it_is/mine"
    first, second = found["choices"]
    assert 0 <= first.pop("age_seconds") < 10
    assert first.pop("sequence") == str(keys[0])
    assert card(frontend, str(keys[0]))["id"] == found["id"]
    assert first == {
        "index": 0,
        "state": "waiting",
        "place": 3,
        "waits_for": "slot",
        "preemptions": 1,
        "priority": 5,
        "prompt_tokens": 7,
        "cached_tokens": 0,
        "computed_tokens": 0,
        "generated_tokens": 0,
        "start_seconds": 0.988,
        "first_token_seconds": 1.235,
        "queued_seconds": None,
        "prefill_seconds": None,
        "resumed": False,
        "reason": None,
    }
    assert (second["state"], second["place"], second["waits_for"], second["first_token_seconds"]) == (DECODE, None, None, None)
    assert (second["cached_tokens"], second["computed_tokens"], second["generated_tokens"]) == (4, 9, 3)
    for key in keys:
        peers.send(Started(keys[0], 7))
        peers.send(Ended(key=key, finish="stop", completion_tokens=0))
    status, body = client.end()
    assert (status, json.loads(body)["id"]) == (200, found["id"])
    assert card(frontend, str(keys[1]))["id"] == found["id"]


def test_a_life_is_told_to_who_asks_for_it_also_after_the_end(ready: Pair) -> None:
    frontend, peers = ready
    moments = [Moment(what=GOT_SLOT, at=0.0123456, tokens=4, slot=2), Moment(what=COMPUTED, at=0.5, tokens=300, steps=3, until=0.7)]

    def script(message: Message) -> Iterable[FromTokenizer]:
        if isinstance(message, Explain):
            lives = [Life(key=message.keys[0], moments=moments)] if message.lives else []
            yield Explained(key=message.key, frontend=message.frontend, standings=[], lives=lives)

    peers.script = script
    client = Client(frontend, TEXT_PATH, {"prompt": "A", "n": 2}, "lived")
    keys = peers.expect(Generate).keys
    assert "life" not in card(frontend, "lived")["choices"][0]
    life = [{"what": "slot", "at": 0.0123, "tokens": 4, "slot": 2}, {"what": "prefill", "at": 0.5, "tokens": 300, "steps": 3, "until": 0.7}]
    wait_until(lambda: [choice["life"] for choice in card(frontend, "lived?life=true")["choices"]] == [life, None])
    peers.send(Started(keys[0], 1))
    for key in keys:
        peers.send(Ended(key=key, finish="stop", completion_tokens=0))
    assert client.end()[0] == 200
    ended = wait_for_card(frontend, "lived", "finished")
    assert "life" not in ended["choices"][0]
    lived = ended | {"choices": [ended["choices"][0] | {"life": life}, ended["choices"][1] | {"life": None}]}
    wait_until(lambda: card(frontend, "lived?life=true") == lived)
    assert card(frontend, "lived?life=false") == ended
    for query in ("life=yes", "lives=true"):
        status, _, body = frontend.get(f"/v1/requests/lived?{query}")
        assert (status, json.loads(body)["error"]["param"]) == (400, query.partition("=")[0])


def test_before_the_scheduler_has_it_a_request_is_being_encoded(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = explained()
    client = Client(frontend, TEXT_PATH, {"prompt": ["A", "B"]}, "early")
    first, second = peers.expect(Generate).keys[0], peers.expect(Generate).keys[0]
    assert [choice["state"] for choice in card(frontend, "early")["choices"]] == ["encoding", "encoding"]
    peers.send(Started(first, 2))
    assert wait_for_card(frontend, "early", "waiting")["choices"][1]["state"] == "encoding"
    peers.send(TextDelta(first, "x", [7]))
    assert wait_for_card(frontend, "early", "decode")["note"] is None
    peers.send(Ended(key=first, finish="length", completion_tokens=1, cached_tokens=1))
    found = wait_for_card(frontend, "early", "encoding")
    assert [(choice["state"], choice["reason"], choice["cached_tokens"]) for choice in found["choices"]] == [
        ("finished", "length", 1),
        ("encoding", None, None),
    ]
    peers.send(Ended(key=second, problem=Problem(status=429, code="queue_full", message="full")))
    assert client.end()[0] == 429
    found = card(frontend, "early")
    assert (found["state"], [choice["state"] for choice in found["choices"]]) == ("error", ["finished", "error"])
    assert found["choices"][1]["reason"] == "queue_full"


def test_ended_requests_are_remembered(ready: Pair) -> None:
    frontend, _ = ready
    *chunks, _ = frontend.stream(CHAT_PATH, CHAT)
    found = wait_for_card(frontend, chunks[0]["id"], "finished")
    (choice,) = found["choices"]
    assert (found["stream"], found["created"]) == (True, chunks[0]["created"])
    assert (choice["state"], choice["reason"], choice["prompt_tokens"], choice["generated_tokens"]) == ("finished", "stop", 5, 2)
    assert (choice["computed_tokens"], choice["first_token_seconds"], choice["preemptions"]) == (None, None, None)
    assert json.loads(frontend.call("DELETE", f"/v1/requests/{found['id']}")[2]) == found


def test_a_client_that_goes_away_leaves_a_cancelled_request(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = silent
    with frontend.open(CHAT_PATH, CHAT):
        peers.expect(Generate)
        (name,) = [entry["id"] for entry in listed_with(frontend, peers)["data"]]
    found = wait_for_card(frontend, name, "cancelled")
    assert found["choices"][0]["reason"] == "client_closed"


def listed_with(frontend: Frontend, peers: Peers) -> Any:
    """The list while the scheduler answers every question with nothing."""
    before, peers.script = peers.script, explained()
    try:
        return listed(frontend)
    finally:
        peers.script = before


def test_without_an_answer_the_frontend_says_what_it_knows(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = silent
    client = Client(frontend, CHAT_PATH, CHAT, "unanswered")
    key = peers.expect(Generate).keys[0]
    peers.send(Started(key, 2))
    began = time.monotonic()
    found = shown(frontend, "/unanswered")
    assert time.monotonic() - began > 1.5
    assert "did not answer in time" in found["note"]
    assert (found["state"], found["choices"][0]["prompt_tokens"], found["choices"][0]["place"]) == ("waiting", 2, None)
    question = peers.expect(Explain)
    assert peers.expect(Cancel).keys == [question.key]  # it is not waited for any longer
    peers.send(Explained(key=question.key, frontend="frontend0", standings=[]))  # too late: dropped
    peers.send(Ended(key=key, finish="stop", completion_tokens=0))
    assert client.end()[0] == 200


def test_a_dead_tokenizer_is_not_waited_for(run_dir: Path) -> None:
    """The best of three: without an answer it takes two seconds every time."""
    took: list[float] = []
    with running(run_dir) as (frontend, peers):
        peers.script = silent
        for incarnation in (2, 3, 4):
            name = f"orphan{incarnation}"
            client = Client(frontend, CHAT_PATH, CHAT, name)
            peers.expect(Generate)
            question = threading.Thread(target=shown, args=(frontend, f"/{name}"))
            question.start()
            peers.expect(Explain)
            began = time.monotonic()
            peers.state = cluster_state(incarnation=incarnation)
            question.join(timeout=TIMEOUT)
            took.append(time.monotonic() - began)
            key = peers.expect(Generate).keys[0]
            peers.send(Started(key, 2))
            peers.send(Ended(key=key, finish="stop", completion_tokens=0))
            assert client.end()[0] == 200
            if took[-1] < 1.5:
                break
    assert min(took) < 1.5


def test_cancelling_a_request_that_is_not_streamed(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = explained()
    client = Client(frontend, CHAT_PATH, {**CHAT, "n": 2}, "cancel-me")
    keys = peers.expect(Generate).keys
    peers.send(Started(keys[0], 2))
    wait_for_card(frontend, "cancel-me", "waiting")
    aborted = frontend.metric("request_success_total", finished_reason="abort")
    status, _, body = frontend.call("DELETE", "/v1/requests/cancel-me")
    assert status == 200
    assert [(choice["state"], choice["reason"]) for choice in json.loads(body)["choices"]] == [("cancelled", "cancelled")] * 2
    while (cancelled := peers.expect(Cancel).keys) != keys:
        assert not set(cancelled) & set(keys)
    status, answer = client.end()
    error = json.loads(answer)["error"]
    assert (status, error["code"], error["type"]) == (499, "cancelled", "cancelled_error")
    assert frontend.metric("request_success_total", finished_reason="abort") - aborted == 2
    assert card(frontend, "cancel-me")["state"] == "cancelled"


def test_cancelling_a_stream(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = explained()
    client = Client(frontend, CHAT_PATH, {**CHAT, "stream": True}, "cancel-stream")
    key = peers.expect(Generate).keys[0]
    peers.send(Started(key, 2))
    peers.send(TextDelta(key, "so far", [7]))
    wait_for_card(frontend, "cancel-stream", "decode")
    assert frontend.call("DELETE", "/v1/requests/cancel-stream")[0] == 200
    status, body = client.end()
    assert status == 200
    events = [block.removeprefix("data: ") for block in body.decode().split("\n\n") if block]
    assert "so far" in "".join(events)
    assert json.loads(events[-2])["error"]["code"] == "cancelled"
    assert events[-1] == "[DONE]"


def test_text_of_the_same_moment_does_not_hide_an_error(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = silent
    client = Client(frontend, CHAT_PATH, {**CHAT, "n": 2, "stream": True}, "half")
    first, second = peers.expect(Generate).keys
    peers.send(Started(first, 1))
    peers.send(TextDelta(first, "x", [7]))
    frontend.wait_metric("frontend_live_sequences", 2)
    peers.send(Ended(key=first, finish="stop", text="y", completion_tokens=2))
    peers.send(Ended(key=second, problem=Problem(status=500, code="non_finite", message="no")))
    status, body = client.end()
    assert b"non_finite" in body
    assert status == 500 or body.endswith(b"data: [DONE]\n\n")


def test_the_list_has_the_newest_first_and_is_bounded(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = explained()
    clients, keys = [], []
    for number in range(3):
        clients.append(Client(frontend, TEXT_PATH, {"prompt": "A", "n": 2}, f"list-{number}"))
        keys += peers.expect(Generate).keys
    everything = listed(frontend)
    assert ([entry["request_id"] for entry in everything["data"]], everything["has_more"]) == (["list-2", "list-1", "list-0"], False)
    assert sorted(peers.expect(Explain).keys) == sorted(keys)
    some = listed(frontend, "?limit=2")
    assert ([entry["request_id"] for entry in some["data"]], some["has_more"]) == (["list-2", "list-1"], True)
    for key in keys:
        peers.send(Started(key, 1))
        peers.send(Ended(key=key, finish="stop", completion_tokens=0))
    assert [client.end()[0] for client in clients] == [200] * 3
    frontend.wait_metric("frontend_live_sequences", 0)
    assert listed(frontend) == {"object": "list", "data": [], "has_more": False, "unanswered": []}


def test_a_request_of_a_thousand_choices_is_asked_for_in_parts(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = explained()
    client = Client(frontend, TEXT_PATH, {"prompt": ["A"] * 32, "n": 32}, "wide")
    for _ in range(32):
        peers.expect(Generate)
    deadline = time.monotonic() + TIMEOUT
    while len((found := shown(frontend))["data"]) != 1 or len(found["data"][0]["choices"]) != 1024:
        assert time.monotonic() < deadline
    sizes = [len(peers.expect(Explain).keys) for _ in range(4)]
    assert (sizes, MAX_KEYS) == ([256] * 4, 256)
    assert frontend.call("DELETE", "/v1/requests/wide")[0] == 200
    assert client.end()[0] == 499


@pytest.mark.parametrize("query", ["limit=0", "limit=257", "limit=x", "limit=-1", "limit=", "limit=99999999999999999999", "limit=%C2%B2", "nope=1"])
def test_parameters_of_the_list_are_checked(ready: Pair, query: str) -> None:
    status, _, body = ready[0].get(f"/v1/requests?{query}")
    assert (status, json.loads(body)["error"]["param"]) == (400, query.partition("=")[0])


def test_a_cache_salt_goes_with_the_request(ready: Pair) -> None:
    frontend, peers = ready
    for path, body in ((CHAT_PATH, CHAT), (TEXT_PATH, {"prompt": "A"})):
        for salt, sent in (("s" * 256, "s" * 256), (None, "")):
            assert frontend.post(path, {**body, "cache_salt": salt})[0] == 200
            request = peers.expect(Generate)
            assert (request.cache_salt, request.tenant) == (sent, "")
        for bad in ("", "s" * 257, 1):
            status, _, answer = frontend.post(path, {**body, "cache_salt": bad})
            assert (status, answer["error"]["param"]) == (400, "cache_salt")
