"""The response object and its events: any way the text comes, the events say the response and nothing else."""

import asyncio
import codecs
import itertools
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialects.events import Content
from dialects.registry import REASONING, TOOLS
from frontend.reading import Came, Listener, Reading, Said
from frontend.responses import events as module
from frontend.responses.body import InputTokensDetails, OutputTokensDetails, ResponseBody, ResponseUsage
from frontend.responses.events import Event, EventLog, OutputTextDelta, wire
from frontend.responses.recorder import Recorder, replay
from messages.text import Ended, Problem, TextDelta, TokenLogprob
from tests.support.journal_records import body_of

USAGE = ResponseUsage(5, InputTokensDetails(0), 2, OutputTokensDetails(), 7)


def data(event: Event) -> dict[str, Any]:
    """What a client reads of it."""
    name, _, rest = wire(event).decode().partition("\n")
    found: dict[str, Any] = json.loads(rest.removeprefix("data: ").rstrip("\n"))
    assert name == f"event: {found['type']}"
    return found


def rebuilt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output by a client that has nothing but events, and checks that they follow each other as they must."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            assert all(item["status"] != "in_progress" for item in items)
            items.append(event["item"])
        elif "output_index" in event:
            item = items[event["output_index"]]
            assert event.get("item_id", item["id"]) == item["id"]
            _grow(item, kind, event)
    return items


def _grow(item: dict[str, Any], kind: str, event: dict[str, Any]) -> None:
    if kind == "content_part.added":
        item["content"].append(event["part"])
    elif kind == "content_part.done":
        assert event["part"] == item["content"][-1]
    elif kind in ("output_text.delta", "reasoning_text.delta"):
        item["content"][event["content_index"]]["text"] += event["delta"]
        if kind == "output_text.delta":
            item["content"][event["content_index"]]["logprobs"] += event["logprobs"]
    elif kind in ("output_text.done", "reasoning_text.done"):
        part = item["content"][event["content_index"]]
        assert (event["text"], event.get("logprobs")) == (part["text"], part.get("logprobs"))
    elif kind == "function_call_arguments.delta":
        item["arguments"] += event["delta"]
    elif kind == "function_call_arguments.done":
        assert (event["arguments"], event["name"]) == (item["arguments"], item["name"])
    else:
        assert kind == "output_item.done"
        assert {**item, "status": event["item"]["status"]} == event["item"]
        item.update(event["item"])


def text_of(items: list[dict[str, Any]]) -> str:
    return "".join(part["text"] for item in items for part in item["content"])


def output_of(body: ResponseBody) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(msgspec.json.encode(body.output))
    return found


def as_events(body: ResponseBody) -> list[dict[str, Any]]:
    found: list[Event] = []
    replay(body, found.append)
    return [data(event) for event in found]


@given(st.lists(st.text(max_size=5), max_size=8), st.sampled_from(["stop", "length", "failed", "cancelled"]), st.booleans())
def test_events_say_what_the_response_says(texts: list[str], ending: str, background: bool) -> None:
    found: list[Event] = []
    body = body_of(1, "queued" if background else "in_progress")
    body.background = background
    recorder = Recorder(body, found.append)
    recorder.accept()
    for number, text in enumerate(texts):
        recorder.take([(0, text if number % 2 else TextDelta(1, text, [7]))])
    if ending in ("stop", "length"):
        recorder.take([(0, Ended(key=1, finish=ending, text="!"))])
        recorder.conclude(USAGE, now=5)
    else:
        recorder.fail(Problem(status=500, code={"failed": "step_failed", "cancelled": "cancelled"}[ending], message="No."))
    events = [data(event) for event in found]
    said = "".join(texts) + ("!" if ending in ("stop", "length") else "")
    assert text_of(rebuilt(events)) == text_of(output_of(body)) == said
    last = {"stop": "response.completed", "length": "response.incomplete", "failed": "response.failed", "cancelled": "error"}[ending]
    assert events[-1]["type"] == last
    assert [event["type"] for event in events[:2]] == ["response.created", "response.queued" if background else "response.in_progress"]
    assert body.status == {"stop": "completed", "length": "incomplete"}.get(ending, ending)
    if background:  # what a client is told that comes back when the events of its making are gone
        again = as_events(body)
        assert text_of(rebuilt(again)) == said
        assert (again[-1] | {"sequence_number": 0}) == (events[-1] | {"sequence_number": 0}) or ending == "cancelled"
        assert {event["item_id"] for event in again if "item_id" in event} <= {event["item_id"] for event in events if "item_id" in event}


CALLS = {
    "hermes": '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n<tool_call>{"name": "add", "arguments": {}}</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>",
}
OFFERED: dict[str, dict[str, Any]] = {"add": {"type": "object", "properties": {"a": {"type": "integer"}}}}


def heard(pieces: list[bytes], dialect: str, ending: str) -> Iterator[Came]:
    """What the dispatcher makes of an answer of these tokens."""
    listener = Listener(Reading(TOOLS[dialect], OFFERED, REASONING["think"]), inside=False)
    decoder = codecs.getincrementaldecoder("utf-8")()
    for piece in pieces:
        text, score = decoder.decode(piece), TokenLogprob(7, piece, -0.5, [(7, piece, -0.5), (8, b"x", -1.5)])
        yield Said(listener.hear(text, 1), TextDelta(1, text, [7], [score]))
    if ending in ("stop", "length"):
        yield listener.end(Ended(key=1, finish=ending, logprobs=[TokenLogprob(2, b"<eot>", -0.1, [], True)]))


@settings(max_examples=60)
@given(st.data(), st.sampled_from(sorted(CALLS)), st.sampled_from(["stop", "length", "failed", "cancelled"]), st.booleans())
def test_reasoning_calls_and_logprobs_are_said_by_events(data_: st.DataObject, dialect: str, ending: str, behind: bool) -> None:
    whole = f"<think>\nZwölf 🦙.\n</think>\n\nSó, then.\n{CALLS[dialect]}\nDoné."
    raw = whole.encode()
    cuts = sorted({*range(0, len(raw), 8), len(raw), *data_.draw(st.lists(st.integers(1, len(raw) - 1), max_size=30))})
    pieces = [raw[begin:end] for begin, end in itertools.pairwise(cuts)]
    if ending != "stop":
        pieces = pieces[: data_.draw(st.integers(1, len(pieces)))]
    found: list[Event] = []
    body = body_of(1)
    recorder = Recorder(body, found.append, lambda: 9)
    recorder.accept()
    came = [(0, one) for one in heard(pieces, dialect, ending)]
    half = data_.draw(st.integers(0, len(came)))
    for part in (came[:half], came[half:]):
        recorder.take(part, behind)
    if ending in ("stop", "length"):
        recorder.conclude(USAGE, now=5)
    else:
        recorder.fail(Problem(status=500, code={"failed": "step_failed", "cancelled": "cancelled"}[ending], message="No."))
    items = rebuilt([data(event) for event in found])
    unended = ending in ("failed", "cancelled")
    for item, final in zip(items, output_of(body), strict=True):
        assert {**item, "status": final["status"]} == final
        assert item["status"] == final["status"] or (unended and item is items[-1])
    if ending == "stop":
        calls = [("add", '{"a": 1}'), ("add", "{}")][: CALLS[dialect].count("<tool_call>")]
        assert [item["type"] for item in items] == ["reasoning", "message", *["function_call"] * len(calls), "message"]
        assert [item["content"][0]["text"] for item in (items[0], items[1], items[-1])] == ["Zwölf 🦙.", "Só, then.", "\nDoné."]
        assert [(item["name"], json.loads(item["arguments"])) for item in items[2:-1]] == [(name, json.loads(text)) for name, text in calls]
        assert {len(item["call_id"]) for item in items[2:-1]} == {9}
        _check_scores(pieces, items)
    again = rebuilt(as_events(body))
    assert [{**item, "status": ""} for item in again] == [{**item, "status": ""} for item in items]


def _check_scores(pieces: list[bytes], items: list[dict[str, Any]]) -> None:
    """The tokens of a text are those, in order, that have some of it; none is told twice."""
    scores = [[bytes(score["bytes"]) for score in item["content"][0]["logprobs"]] for item in items if item["type"] == "message"]
    at = 0
    for tokens, item in zip(scores, (items[1], items[-1]), strict=True):
        text = item["content"][0]["text"].encode()
        place = next(number for number in range(at, len(pieces)) if pieces[number : number + len(tokens)] == tokens and text in b"".join(tokens))
        at = place + len(tokens)
        assert text not in b"".join(tokens[1:])
        assert text not in b"".join(tokens[:-1])


def test_a_call_that_does_not_end_is_incomplete() -> None:
    body = body_of(1)
    recorder = Recorder(body, lambda _: None)
    recorder.accept()
    for one in heard([b'<tool_call>{"name": "add", "arguments": {"a"'], "hermes", "none"):
        recorder.take([(0, one)])
    recorder.take([(0, Said([Content("B")], Ended(key=1, finish="stop"), "stop"))])
    recorder.conclude(USAGE)
    assert (body.status, [item.status for item in body.output]) == ("completed", ["incomplete", "completed"])


def test_a_slow_reader_gets_one_delta_for_all_that_waits() -> None:
    found: list[Event] = []
    recorder = Recorder(body_of(1), found.append)
    recorder.accept()
    recorder.take([(0, "A"), (0, TextDelta(1, "B", [7])), (0, Ended(key=1, finish="length", text="C"))], behind=True)
    recorder.take([], behind=True)
    recorder.conclude(USAGE)
    assert [event.delta for event in found if isinstance(event, OutputTextDelta)] == ["ABC"]
    assert recorder.body.status == "incomplete"


def test_what_was_told_before_does_not_change_after() -> None:
    """Events are encoded when they are read, which may be late."""
    found: list[Event] = []
    recorder = Recorder(body_of(1), found.append)
    recorder.accept()
    recorder.take([(0, "A")])
    recorder.take([(0, Ended(key=1, finish="stop"))])
    recorder.conclude(USAGE)
    told = [data(event) for event in found]
    assert [event["response"]["status"] for event in told if "response" in event] == ["queued", "queued", "in_progress", "completed"]
    assert [event["response"]["output"] for event in told if "response" in event][:3] == [[], [], []]
    assert told[3]["item"]["content"] == []


def delta(number: int) -> OutputTextDelta:
    return OutputTextDelta(number, "msg", 0, 0, "x")


def test_a_log_is_bounded_in_bytes_too() -> None:
    log = EventLog(limit=1000, most=10_000)
    for number in range(200):
        log.add(OutputTextDelta(number, "msg", 0, 0, "x" * 100, [msgspec.Raw(b"{}" * 500)]))
        assert log.memory() < 20_000
    assert log.next == 200
    assert 8 <= log.next - log.first < 17


def test_a_log_keeps_the_last_events_and_tells_what_is_gone() -> None:
    log = EventLog(limit=10)
    for number in range(57):
        log.add(delta(number))
        assert 10 <= log.next - log.first < 20 or log.first == 0
        assert log.since(log.first, 100) == [delta(each) for each in range(log.first, number + 1)]
    assert log.next == 57
    assert log.since(log.first - 1, 1) is None
    assert log.since(55, 1) == [delta(55)]
    assert log.since(57, 5) == log.since(99, 5) == []
    assert log.memory() > 10 * module.EVENT_BYTES


async def test_readers_wake_when_there_is_something_for_them() -> None:
    log = EventLog()
    waiting = [asyncio.create_task(log.more(number)) for number in (0, 0, 1, 5)]
    gone = asyncio.create_task(log.more(0))
    await asyncio.sleep(0)
    gone.cancel()
    log.add(delta(0))
    await asyncio.wait_for(asyncio.gather(*waiting[:2]), 60)
    assert not waiting[2].done()
    log.add(delta(1))
    await asyncio.wait_for(waiting[2], 60)
    log.end()
    await asyncio.wait_for(waiting[3], 60)
    await log.more(99)
    with pytest.raises(asyncio.CancelledError):
        await gone
