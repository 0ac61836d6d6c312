"""The response object and its events: any way the text comes, the events say the response and nothing else."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frontend.responses import events as module
from frontend.responses.body import InputTokensDetails, OutputTokensDetails, ResponseBody, ResponseUsage
from frontend.responses.events import Event, EventLog, OutputTextDelta, wire
from frontend.responses.recorder import Recorder, replay
from messages.text import Ended, Problem, TextDelta
from tests.support.journal_records import body_of

USAGE = ResponseUsage(5, InputTokensDetails(0), 2, OutputTokensDetails(), 7)


def data(event: Event) -> dict[str, Any]:
    """What a client reads of it."""
    name, _, rest = wire(event).decode().partition("\n")
    found: dict[str, Any] = json.loads(rest.removeprefix("data: ").rstrip("\n"))
    assert name == f"event: {found['type']}"
    return found


def rebuilt(events: list[dict[str, Any]]) -> str:
    """The text by a client that has nothing but events, and checks that they follow each other as they must."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text, opened = "", [event["type"] for event in events].count("response.output_item.added")
    for event in events:
        text += event.get("delta", "")
        if event["type"] == "response.output_text.done":
            assert event["text"] == text
        for part in [event["part"]] if event["type"] == "response.content_part.done" else []:
            assert part["text"] == text
    assert opened <= 1
    return text


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
    assert rebuilt(events) == said
    assert "".join(part.text for item in body.output for part in item.content) == said
    last = {"stop": "response.completed", "length": "response.incomplete", "failed": "response.failed", "cancelled": "error"}[ending]
    assert events[-1]["type"] == last
    assert [event["type"] for event in events[:2]] == ["response.created", "response.queued" if background else "response.in_progress"]
    assert body.status == {"stop": "completed", "length": "incomplete"}.get(ending, ending)
    if background:  # what a client is told that comes back when the events of its making are gone
        again = as_events(body)
        assert rebuilt(again) == said
        assert (again[-1] | {"sequence_number": 0}) == (events[-1] | {"sequence_number": 0}) or ending == "cancelled"
        assert {event["item_id"] for event in again if "item_id" in event} <= {event["item_id"] for event in events if "item_id" in event}


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
    await asyncio.wait_for(asyncio.gather(*waiting[:2]), 5)
    assert not waiting[2].done()
    log.add(delta(1))
    await asyncio.wait_for(waiting[2], 5)
    log.end()
    await asyncio.wait_for(waiting[3], 5)
    await log.more(99)
    with pytest.raises(asyncio.CancelledError):
        await gone
