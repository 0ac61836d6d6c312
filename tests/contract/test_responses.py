"""/v1/responses against the frontend process: the `openai` client where it can say it, plain HTTP where it cannot."""

import json
import re
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from messages.request import Cancel, Generate
from messages.text import Ended, FromTokenizer, Problem, Started, TextDelta
from tests.support.frontend_peers import MODEL, Frontend, Message, Peers, read_until, running, say, silent
from tests.support.responses import PATH, begun, client_of, conversation, told, wait_for
from tests.support.waiting import wait_until
from transport.key_file import new_key

Pair = tuple[Frontend, Peers]
UNKNOWN = "resp_" + "0" * 34
WHOLE = [
    *("response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"),
    *("response.output_text.delta", "response.output_text.delta"),
    *("response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed"),
]


@pytest.fixture
def client(ready: Pair) -> Iterator[openai.OpenAI]:
    with client_of(ready[0]) as made:
        yield made


def asked(peers: Peers) -> list[tuple[str, Any]]:
    """Roles and contents of the next prompt that the tokenizer gets."""
    return conversation(peers.expect(Generate))


def typed_events(answer: bytes) -> list[dict[str, Any]]:
    """The events of a stream by the letter: an `event` line, a `data` line, an empty one."""
    found = []
    for block in answer.decode().split("\n\n")[:-1]:
        match = re.fullmatch(r"event: (\S+)\ndata: (.*)", block)
        assert match is not None, block
        data = json.loads(match[2])
        assert data["type"] == match[1]
        found.append(data)
    return found


def stream(frontend: Frontend, body: dict[str, Any]) -> list[dict[str, Any]]:
    status, headers, answer = frontend.call("POST", PATH, json.dumps({"input": "A", **body, "stream": True}).encode())
    assert status == 200, answer
    assert headers["content-type"].startswith("text/event-stream")
    return typed_events(answer)


def resumed(frontend: Frontend, name: str, query: str) -> list[dict[str, Any]]:
    status, _, answer = frontend.get(f"{PATH}/{name}?stream=true{query}")
    assert status == 200, answer
    return typed_events(answer)


def test_a_head_has_no_events(ready: Pair) -> None:
    frontend, peers = ready
    name = begun(frontend, peers)[0]
    connection = frontend.connection()
    for method, query in (("HEAD", "?stream=true"), ("HEAD", "?stream=true"), ("GET", "")):
        connection.request(method, f"{PATH}/{name}{query}")
        response = connection.getresponse()
        assert response.status == 200
        assert bool(response.read()) == (method == "GET")
    connection.close()
    assert frontend.call("POST", f"{PATH}/{name}/cancel")[0] == 200


def test_a_whole_answer(ready: Pair, client: openai.OpenAI) -> None:
    peers = ready[1]
    answer = client.responses.create(
        model=MODEL, instructions="Be brief.", input="A", temperature=0.5, top_p=0.9, max_output_tokens=7, metadata={"a": "b"}, extra_body={"seed": 3}
    )
    message = peers.expect(Generate)
    assert (message.sampling.temperature, message.sampling.top_p, message.stop.max_tokens, message.seeds) == (0.5, 0.9, 7, [3])
    assert answer.output_text == "Hello world"
    assert (answer.status, answer.error, answer.incomplete_details, answer.background) == ("completed", None, None, False)
    assert (answer.temperature, answer.top_p, answer.max_output_tokens, answer.metadata) == (0.5, 0.9, 7, {"a": "b"})
    assert (answer.model, answer.instructions, answer.tools, answer.tool_choice, answer.truncation) == (MODEL, "Be brief.", [], "auto", "disabled")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (5, 2, 7)
    assert (answer.usage.input_tokens_details.cached_tokens, answer.usage.output_tokens_details.reasoning_tokens) == (0, 0)
    type(answer).model_validate(answer.to_dict())  # every field that the client counts on is there, and of its type
    again = client.responses.retrieve(answer.id)
    assert again.to_dict() == answer.to_dict()
    assert ready[0].get(f"/v1/requests/{answer.id}")[0] == 200


def test_what_the_model_is_given(ready: Pair, client: openai.OpenAI) -> None:
    peers = ready[1]
    first = client.responses.create(model=MODEL, instructions="One.", input=[{"role": "developer", "content": "D"}, {"role": "user", "content": "A"}])
    assert asked(peers) == [("system", "One."), ("developer", "D"), ("user", "A")]
    parts: Any = [{"type": "input_text", "text": "B"}, {"type": "input_text", "text": "C"}]
    second = client.responses.create(model=MODEL, instructions="Two.", input=[{"role": "user", "content": parts}], previous_response_id=first.id)
    both = [{"type": "text", "text": "B"}, {"type": "text", "text": "C"}]
    assert asked(peers) == [("system", "Two."), ("developer", "D"), ("user", "A"), ("assistant", "Hello world"), ("user", both)]
    assert second.previous_response_id == first.id
    mine: Any = [{"role": "user", "content": "A"}, *(item.to_dict() for item in second.output), {"role": "user", "content": "E"}]
    client.responses.create(model=MODEL, input=mine)
    assert asked(peers) == [("user", "A"), ("assistant", "Hello world"), ("user", "E")]


def test_input_items_are_listed_in_pages(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, instructions="I.", input="A")
    second = client.responses.create(model=MODEL, input=[{"role": "user", "content": text} for text in "BCD"], previous_response_id=first.id)
    for order in ("asc", "desc"):
        listed: Any = list(client.responses.input_items.list(second.id, order=order, limit=2))
        texts = [item.content[0].text for item in listed]
        assert texts == ["A", "Hello world", "B", "C", "D"][:: 1 if order == "asc" else -1]
        assert len({item.id for item in listed}) == 5
    assert len(client.responses.input_items.list(second.id).data) == 5
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.input_items.list(second.id, after="msg_x")
    assert error.value.param == "after"


def test_the_events_of_a_stream(ready: Pair, client: openai.OpenAI) -> None:
    events = stream(ready[0], {})
    assert [event["type"] for event in events] == WHOLE
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]["response"]
    assert [event["response"]["status"] for event in (*events[:2], events[-1])] == ["in_progress", "in_progress", "completed"]
    (item,) = final["output"]
    assert "".join(event["delta"] for event in events if "delta" in event) == item["content"][0]["text"] == "Hello world"
    assert {event["item_id"] for event in events if "item_id" in event} == {item["id"]}
    assert events[2]["item"] == {**item, "status": "in_progress", "content": []}
    assert events[3]["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    assert (events[-4]["text"], events[-3]["part"], events[-2]["item"]) == ("Hello world", item["content"][0], item)
    assert final["usage"]["total_tokens"] == 7
    assert json.loads(ready[0].get(f"{PATH}/{final['id']}")[2]) == final


def test_the_clients_own_helper_for_streams(client: openai.OpenAI) -> None:
    with client.responses.stream(model=MODEL, input="A") as helper:
        seen = [event.type for event in helper]
        final = helper.get_final_response()
    assert seen == WHOLE
    assert final.output_text == "Hello world"


def test_an_answer_that_is_cut_off_is_incomplete(ready: Pair, client: openai.OpenAI) -> None:
    frontend, peers = ready
    peers.script = say("Hello", finish="length")
    whole, events = client.responses.create(model=MODEL, input="A"), stream(frontend, {})
    assert whole.status == events[-1]["response"]["status"] == "incomplete"
    assert events[-1]["type"] == "response.incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert whole.output[0].to_dict()["status"] == "incomplete"


def test_a_failure_has_its_status_or_is_an_event(ready: Pair) -> None:
    frontend, peers = ready
    long = Problem(status=400, code="context_length_exceeded", message="Too long.", param="messages")

    def refused(message: Message) -> Iterable[FromTokenizer]:
        if isinstance(message, Generate):
            yield Ended(key=message.keys[0], problem=long, refused=True)

    peers.script = refused
    for body in ({"input": "A"}, {"input": "A", "stream": True}):
        status, _, answer = frontend.post(PATH, body)
        assert (status, answer["error"]["code"], answer["error"]["param"]) == (400, "context_length_exceeded", "input")
    peers.script = silent
    with frontend.open(PATH, {"input": "A", "stream": True}) as connection:
        key = [peers.expect(Generate) for _ in range(3)][-1].keys[0]  # the first two were refused
        peers.send(Started(key, 5))
        peers.send(TextDelta(key, "Half", [7]))
        answer = read_until(connection, b'"Half"')
        peers.send(Ended(key=key, problem=Problem(status=500, code="step_failed", message="No.")))
        answer += read_until(connection, b"0\r\n\r\n")
    last = json.loads(answer.split(b"data: ")[-1].partition(b"\n")[0])
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "step_failed", "message": "No."}
    assert last["response"]["output"][0]["content"][0]["text"] == "Half"
    assert frontend.get(f"{PATH}/{last['response']['id']}")[0] == 404


def test_what_is_not_stored_or_deleted_is_not_there(ready: Pair, client: openai.OpenAI) -> None:
    unstored = client.responses.create(model=MODEL, input="A", store=False)
    deleted = client.responses.create(model=MODEL, input="A")
    client.responses.delete(deleted.id)
    for name in (unstored.id, deleted.id, UNKNOWN, "nonsense", "resp_ff" + "0" * 32):
        for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel, client.responses.input_items.list):
            with pytest.raises(openai.NotFoundError) as error:
                call(name)
            assert error.value.code == "response_not_found"
        with pytest.raises(openai.NotFoundError) as error:
            client.responses.create(model=MODEL, input="A", previous_response_id=name)
        assert (error.value.code, error.value.param) == ("previous_response_not_found", "previous_response_id")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": ["A"]}, "input[0]"),
        ({"input": [{"role": "user", "content": "A"}, {"type": "item_reference", "id": "msg_1"}]}, "input[1].type"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "A"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": "A", "phase": "commentary"}]}, "input[0].phase"),
        ({"input": [{"role": "user", "content": "A", "name": "x"}]}, "input[0].name"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0]"),
        ({"input": [{"role": "assistant", "content": [{"type": "output_text", "text": "A", "logprobs": {}}]}]}, "input[0].content[0].logprobs"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "x"}}, "prompt"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"background": True, "store": False}, "background"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"stream_options": {"include_obfuscation": True}, "stream": True}, "stream_options"),
        ({"model": "nope"}, "model"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_what_is_not_honoured_is_refused(ready: Pair, body: dict[str, Any], param: str) -> None:
    status, _, answer = ready[0].post(PATH, {"input": "A", **body})
    assert (status, answer["error"]["param"]) == (404 if "model" in body else 400, param)


@pytest.mark.parametrize(
    ("query", "param"),
    [("stream=2", "stream"), ("starting_after=1", "starting_after"), ("stream=true&starting_after=-1", "starting_after"), ("x=1", "x")],
)
def test_parameters_are_checked(ready: Pair, query: str, param: str) -> None:
    status, _, answer = ready[0].get(f"{PATH}/{UNKNOWN}?{query}")
    assert (status, json.loads(answer)["error"]["param"]) == (400, param)


def test_a_client_that_goes_away_cancels_and_leaves_nothing(ready: Pair) -> None:
    frontend, peers = ready
    peers.script = silent
    with frontend.open(PATH, {"input": "A", "stream": True}):
        key = peers.expect(Generate).keys[0]
        peers.send(Started(key, 1))
        peers.send(TextDelta(key, "x", [7]))
    assert peers.expect(Cancel).keys == [key]
    frontend.wait_metric("frontend_live_sequences", 0)


def test_background_from_queued_to_completed(ready: Pair, client: openai.OpenAI) -> None:
    frontend, peers = ready
    name, asking = begun(frontend, peers)
    assert client.responses.retrieve(name).status == "queued"
    told(peers, asking, "Hello", end=False)
    running = wait_for(frontend, name, lambda found: found["status"] != "queued")
    assert (running["status"], running["output"][0]["status"], running["output"][0]["content"][0]["text"]) == ("in_progress", "in_progress", "Hello")
    told(peers, asking, " world")
    answer = client.responses.retrieve(name)
    while answer.status in {"queued", "in_progress"}:  # as OpenAI's guide has it
        time.sleep(0.01)
        answer = client.responses.retrieve(name)
    assert (answer.status, answer.output_text, answer.background) == ("completed", "Hello world", True)
    assert answer.usage is not None
    assert answer.usage.total_tokens == 7
    assert json.loads(frontend.get(f"/v1/requests/{name}")[2])["state"] == "finished"
    second = client.responses.create(model=MODEL, input="B", background=True, previous_response_id=name)
    assert asked(peers) == [("user", "A"), ("assistant", "Hello world"), ("user", "B")]
    assert client.responses.cancel(second.id).status == "cancelled"


def test_what_runs_cannot_be_gone_on_from(ready: Pair, client: openai.OpenAI) -> None:
    frontend, peers = ready
    name, _ = begun(frontend, peers)
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(model=MODEL, input="B", previous_response_id=name)
    assert error.value.code == "previous_response_unusable"
    client.responses.delete(name)
    peers.expect(Cancel)
    assert frontend.get(f"{PATH}/{name}")[0] == 404
    frontend.wait_metric("frontend_live_sequences", 0)


@pytest.mark.parametrize("way", ["cancel", "requests"])
def test_background_is_cancelled(ready: Pair, client: openai.OpenAI, way: str) -> None:
    frontend, peers = ready
    name, asking = begun(frontend, peers)
    told(peers, asking, "Half", end=False)
    wait_for(frontend, name, lambda found: found["status"] == "in_progress")
    if way == "cancel":
        assert client.responses.cancel(name).status == "cancelled"
    else:
        frontend.call("DELETE", f"/v1/requests/{name}")
    assert peers.expect(Cancel).keys == asking.keys
    answer = wait_for(frontend, name, lambda found: found["status"] == "cancelled")
    assert (answer["error"], answer["output"][0]["status"], answer["output"][0]["content"][0]["text"]) == (None, "incomplete", "Half")
    assert client.responses.cancel(name).status == "cancelled"
    assert resumed(frontend, name, "")[-1]["type"] == "error"
    frontend.wait_metric("frontend_live_sequences", 0)


def test_only_background_can_be_cancelled_or_streamed_again(ready: Pair, client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="A")
    with pytest.raises(openai.BadRequestError):
        client.responses.cancel(answer.id)
    with pytest.raises(openai.BadRequestError):
        client.responses.retrieve(answer.id, stream=True)


def test_events_are_there_for_who_comes_back(ready: Pair, client: openai.OpenAI) -> None:
    """The client reads the beginning, goes, and comes back for the rest before and after the end; one that never went sees the same."""
    frontend, peers = ready
    peers.script = silent
    opened = client.responses.create(model=MODEL, input="A", background=True, stream=True)
    asking = peers.expect(Generate)
    peers.send(Started(asking.keys[0], 5))
    told(peers, asking, "Hello", end=False)
    first = [next(opened) for _ in range(6)]
    assert [event.type for event in first] == ["response.created", "response.queued", *WHOLE[1:5]]
    opened.close()
    name = first[0].to_dict()["response"]["id"]  # type: ignore[index]
    later = client.responses.retrieve(name, stream=True, starting_after=first[-1].sequence_number)
    told(peers, asking, " world")
    rest = list(later)
    assert [event.sequence_number for event in (*first, *rest)] == list(range(len(first) + len(rest)))
    assert [event.type for event in rest] == WHOLE[5:]
    assert resumed(frontend, name, "") == [event.to_dict() for event in (*first, *rest)]
    assert [event["sequence_number"] for event in resumed(frontend, name, "&starting_after=8")] == [9, 10]
    assert resumed(frontend, name, "&starting_after=1000") == []


def test_a_full_queue_is_waited_for(ready: Pair) -> None:
    """In the background a 429 of the scheduler is no failure: it is asked again."""
    frontend, peers = ready
    full, refusals = Problem(status=429, code="queue_full", message="Full.", retry_after=0.1), iter(range(2))

    def script(message: Message) -> Iterable[FromTokenizer]:
        if isinstance(message, Generate) and next(refusals, None) is not None:
            yield Started(message.keys[0], 5)
            yield Ended(key=message.keys[0], problem=full, refused=True)
        else:
            yield from say("Hello")(message)

    peers.script = script
    name = frontend.post(PATH, {"input": "A", "background": True})[2]["id"]
    seeds = {tuple(peers.expect(Generate).seeds) for _ in range(3)}
    assert len(seeds) == 1
    assert wait_for(frontend, name, lambda found: found["status"] == "completed")["output"][0]["content"][0]["text"] == "Hello"


def test_a_failure_in_the_background_is_told(ready: Pair, client: openai.OpenAI) -> None:
    frontend, peers = ready
    name, asking = begun(frontend, peers)
    peers.send(Ended(key=asking.keys[0], problem=Problem(status=400, code="context_length_exceeded", message="Too long.")))
    answer = wait_for(frontend, name, lambda found: found["status"] == "failed")
    assert answer["error"] == {"code": "context_length_exceeded", "message": "Too long."}
    assert resumed(frontend, name, "")[-1]["type"] == "response.failed"
    assert client.responses.cancel(name).status == "failed"


def test_a_key_sees_its_own_responses_only() -> None:
    keys = {name: new_key(name, admin=name == "root") for name in ("alice", "bob", "root")}
    lines = tuple(line.text() for _, line in keys.values())
    with tempfile.TemporaryDirectory(prefix="pw-") as folder, running(Path(folder), key_lines=lines) as (frontend, peers):
        alice, bob, root = (client_of(frontend, keys[name][0]) for name in ("alice", "bob", "root"))
        peers.script = say("Hello", " world")
        mine = alice.responses.create(model=MODEL, input="A", background=True)
        for call in (bob.responses.retrieve, bob.responses.cancel, bob.responses.delete, bob.responses.input_items.list):
            with pytest.raises(openai.NotFoundError):
                call(mine.id)
        wait_until(lambda: alice.responses.retrieve(mine.id).status == "completed")
        with pytest.raises(openai.NotFoundError):
            bob.responses.create(model=MODEL, input="B", previous_response_id=mine.id)
        assert root.responses.retrieve(mine.id).output_text == "Hello world"
        assert peers.expect(Generate).tenant == "alice"
        for made in (alice, bob, root):
            made.close()
