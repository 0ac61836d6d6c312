"""Background responses beside the engine's line: a bounded number is in it, the others wait here in order."""

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer

from frontend.args import FrontendArgs
from frontend.cluster import ClusterView
from frontend.core import Core
from frontend.dispatcher import Dispatcher
from frontend.metrics import Metrics
from frontend.responses import background, volume
from frontend.responses.events import EventLog, OutputTextDelta, ResponseFailed
from frontend.responses.fields import AskedReasoning
from frontend.responses.items import Message
from frontend.responses.journal_file import JournalError, pack
from frontend.responses.request import ResponsesRequest
from frontend.responses.restoring import open_journal
from frontend.responses.store import Kept
from frontend.service import make_app
from messages.cluster import READY, ClusterState, ProcessState
from messages.journal import TITLE, Record
from messages.request import Generate
from messages.text import Ended, Started, TextDelta, TokenLogprob
from tests.support.journal_records import accepted, concluded, name_of
from tests.support.outbox import FakeTokenizer

FACTS: dict[str, int | float | str] = {"tool_parser": "hermes", "reasoning_parser": "think", "thinking_switch": "enable_thinking"}


def make_core(tokenizer: FakeTokenizer, model: str = "m", facts: dict[str, int | float | str] | None = None) -> Core:
    args = FrontendArgs(name="frontend0", incarnation=1, run_dir="", host="", port=0, model_name=model, tokenizers=["tokenizer0"], created=0)
    view = ClusterView(args.tokenizers, clock=lambda: 0.0)  # never silent, however long a test takes
    scheduler = ProcessState(name="scheduler", incarnation=1, pid=2, phase=READY, facts={"context": 100})
    processes = [ProcessState(name="tokenizer0", incarnation=1, pid=1, phase=READY, facts=facts or {}), scheduler]
    view.update(ClusterState(ready=True, phase=READY, reason="", model=model, started=0.0, processes=processes))
    metrics = Metrics("m", view)
    return Core(args, view, metrics, Dispatcher("frontend0", {"tokenizer0": tokenizer}, view, metrics))


async def begin(core: Core, number: int, key: str = "", **more: Any) -> Kept:
    request = ResponsesRequest(input="A", background=True, seed=number, **more)
    body = request.body("m")
    work = request.work(core, body, [], "")
    body.id = name_of(number)
    job = background.make_job(core, body, key, [], work)
    await background.accept(core, job)
    return job.kept


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def answer(core: Core, message: Generate, **more: Any) -> None:
    core.dispatcher.receive(Started(message.keys[0], 1))
    core.dispatcher.receive(Ended(key=message.keys[0], finish="stop", **more))


async def test_a_bounded_number_is_with_the_engine_and_the_others_follow_in_order() -> None:
    tokenizer = FakeTokenizer()
    core = make_core(tokenizer)
    core.responses.places = asyncio.Semaphore(2)
    kept = [await begin(core, number) for number in range(5)]
    await settled()
    assert [message.seeds for message in tokenizer.asked] == [[0], [1]]
    await background.cancel(core, kept[2])  # it waits for its turn
    answer(core, tokenizer.asked[1], text="B")
    await settled()
    assert [message.seeds for message in tokenizer.asked] == [[0], [1], [3]]
    await background.cancel(core, kept[0])
    await settled()
    assert [message.seeds for message in tokenizer.asked] == [[0], [1], [3], [4]]
    await background.delete(core, kept[3])
    answer(core, tokenizer.asked[3])
    await settled()
    assert [each.body.status for each in kept] == ["cancelled", "completed", "cancelled", "cancelled", "completed"]
    assert [core.responses.store.find(each.id, None) is each for each in kept] == [True, True, True, False, True]
    assert (len(core.dispatcher), core.responses.store.running, core.responses.store.running_bytes) == (0, {}, 0)


async def test_one_that_is_cancelled_before_it_has_begun_ends_too() -> None:
    core = make_core(FakeTokenizer())
    kept = await begin(core, 1)
    await background.cancel(core, kept)
    assert kept.body.status == "cancelled"
    assert kept.events().ended


async def test_a_journal_is_taken_up_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    """Damaged records, one whose response is none, one of another model: the others are as they were, or are made again."""
    path, letter, tokenizer = tmp_path / "journal", tmp_path / "letter", FakeTokenizer()
    unreadable = msgspec.structs.replace(accepted(2), body=b"{}")
    records: list[Record] = [accepted(0), accepted(1), concluded(1), unreadable, accepted(3)]
    path.write_bytes(TITLE + b"".join(map(pack, records)) + b"damaged" + pack(accepted(4)) + pack(accepted(5))[:-1])
    core = make_core(tokenizer, "tiny")
    await open_journal(core, str(path))
    await settled()
    assert sorted(message.seeds for message in tokenizer.asked) == [[0], [3], [4]]
    assert {message.tenant for message in tokenizer.asked} == {"alice"}
    done = core.responses.store.find(name_of(1), "alice")
    assert done is not None
    assert done.body.status == "completed"
    assert [core.responses.store.find(name_of(number), None) is None for number in range(6)] == [False, False, True, False, False, True]
    assert core.responses.journal is not None
    assert core.responses.journal.damaged == 2
    await background.close(core)
    letter.write_text("Dear all,")
    with pytest.raises(JournalError, match="is not a journal"):
        await open_journal(make_core(tokenizer, "tiny"), str(letter))
    with pytest.raises(JournalError, match="cannot be used: Is a directory"):
        await open_journal(make_core(tokenizer, "tiny"), str(tmp_path))


async def test_a_journal_keeps_how_an_answer_is_asked_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools, what of them is called, reasoning and log probabilities: those of one that is made again, and of one that has ended. Of a third one
    there are more log probabilities than the journal takes."""
    tools = [{"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}]
    first, second = FakeTokenizer(), FakeTokenizer()
    core = make_core(first, facts=FACTS)
    await open_journal(core, str(tmp_path / "journal"))
    choice: Any = {"type": "function", "name": "add"}
    left = await begin(core, 0, tools=tools, tool_choice=choice, reasoning=AskedReasoning(effort="low"))
    done, long = [await begin(core, number, tools=tools, include=["message.output_text.logprobs"]) for number in (1, 2)]
    await settled()
    said, score = 'Hm.<tool_call>{"name": "add", "arguments": {}}</tool_call>', TokenLogprob(7, b"Hm.", -0.5, [])
    answer(core, first.asked[1], text=said, logprobs=[score], ids=[7], tokens=1)
    await settled()
    before = msgspec.json.encode(done.body)
    assert [item.status for item in done.body.output] == ["completed", "completed"]
    assert b'"token":"Hm."' in before
    monkeypatch.setattr(background, "MAX_JSON_BYTES", len(before) + 100)
    answer(core, first.asked[2], text="Hm." * 50, logprobs=[score] * 50, ids=[7], tokens=1)
    await settled()
    await background.close(core)
    core = make_core(second, facts=FACTS)
    await open_journal(core, str(tmp_path / "journal"))
    await settled()
    kept = [core.responses.store.find(each.id, None) for each in (left, done, long)]
    assert kept[1] is not None
    assert kept[2] is not None
    assert msgspec.json.encode(kept[1].body) == before
    assert json.loads(msgspec.json.encode(kept[2].body.output))[0]["content"] == [
        {"type": "output_text", "text": "Hm." * 50, "annotations": [], "logprobs": []}
    ]
    again, sent = (msgspec.structs.replace(each.asked[0], keys=[]) for each in (second, first))
    assert msgspec.msgpack.encode(again) == msgspec.msgpack.encode(sent)
    assert sent.constraint is not None
    assert sent.opening == "<think>"
    answer(core, second.asked[0], text=f"<think>Two.</think>{said}")
    await settled()
    assert kept[0] is not None
    assert [type(item).__struct_config__.tag for item in kept[0].body.output] == ["reasoning", "message", "function_call"]
    await background.close(core)


async def test_events_that_are_gone_are_said_to_be() -> None:
    """At once when the first that is asked for is gone, and in the stream when a reader falls behind what is kept."""
    core = make_core(FakeTokenizer())
    kept = await begin(core, 1)
    log = kept.log = EventLog(limit=4)
    for number in range(20):
        log.add(OutputTextDelta(number, "msg", 0, 0, "x"))
    async with TestClient(TestServer(make_app(core))) as client:
        where = f"/v1/responses/{kept.id}?stream=true&starting_after="
        async with client.get(where + "3") as response:
            assert (response.status, (await response.json())["error"]["code"]) == (400, "events_gone")
        async with client.get(where + "18") as response:
            assert b'"sequence_number":19' in await response.content.readuntil(b"\n\n")
            for number in range(20, 40):  # in one turn of the loop: the reader has none
                log.add(OutputTextDelta(number, "msg", 0, 0, "x"))
            assert b'"code":"too_slow"' in await response.content.read()
    await background.close(core)


def say(core: Core, message: Generate, text: str) -> None:
    core.dispatcher.receive(Started(message.keys[0], 1))
    core.dispatcher.receive(TextDelta(message.keys[0], text, [7]))


async def test_one_that_holds_too_much_is_ended_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume, "MAX_BYTES", 5000)
    tokenizer = FakeTokenizer()
    core = make_core(tokenizer)
    kept = [await begin(core, number) for number in range(2)]
    await settled()
    for text in ("A" * 2500, "B" * 2500, "C"):
        say(core, tokenizer.asked[0], text)
        await settled()
    assert (kept[0].body.status, kept[0].body.error and kept[0].body.error.code) == ("failed", "response_too_large")
    assert [part.text for item in kept[0].body.output if isinstance(item, Message) for part in item.content] == ["A" * 2500 + "B" * 2500]
    assert isinstance((kept[0].events().since(0, 99) or [])[-1], ResponseFailed)
    assert kept[1].body.status == "queued"
    answer(core, tokenizer.asked[1], text="B" * 6000)
    await settled()
    assert kept[1].body.status == "completed", "its last text has come: there is nothing to end"
    assert (core.responses.store.held_bytes, len(core.dispatcher)) == (0, 0)


async def test_when_all_hold_too_much_the_largest_of_who_has_most_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volume, "MAX_TOTAL_BYTES", 30_000)
    tokenizer = FakeTokenizer()
    core = make_core(tokenizer)
    kept = [await begin(core, number, key) for number, key in enumerate(("alice", "bob", "alice", "alice"))]
    await settled()
    for number, size in enumerate((6000, 9000, 8000, 1000)):
        say(core, tokenizer.asked[number], "x" * size)
    await settled()
    assert {each.body.status for each in kept} == {"in_progress"}
    say(core, tokenizer.asked[1], "x" * 5000)  # more than any other, but alice has more
    await settled()
    assert [each.body.status for each in kept] == ["in_progress", "in_progress", "failed", "in_progress"]
    assert kept[2].body.error is not None
    assert kept[2].body.error.code == "background_full"
    assert 0 < core.responses.store.held_bytes < 30_000
    for each in kept:
        await background.cancel(core, each)
    assert core.responses.store.held_bytes == 0


async def test_a_mistake_of_ours_is_an_end(caplog: Any) -> None:
    tokenizer = FakeTokenizer()
    core = make_core(tokenizer)
    kept = await begin(core, 1)
    await settled()
    assert kept.recorder is not None
    kept.recorder.take = None  # type: ignore[method-assign,assignment]
    answer(core, tokenizer.asked[0], text="B")
    await settled()
    assert (kept.body.status, kept.body.error and kept.body.error.code) == ("failed", "internal_error")
    assert "Traceback" in caplog.text


async def test_what_was_accepted_is_finished_when_the_cluster_drains_and_waits_when_another_model_comes() -> None:
    """It says from the beginning of which model it is: it is not made by another one."""
    tokenizer = FakeTokenizer()
    core = make_core(tokenizer)
    state = core.view.state
    assert state is not None

    def hear(**fields: Any) -> None:
        core.view.update(msgspec.structs.replace(state, **fields))
        core.dispatcher.follow()

    core.responses.places = asyncio.Semaphore(1)
    kept = [await begin(core, number) for number in range(2)]
    await settled()
    hear(draining=True)
    answer(core, tokenizer.asked[0])
    await settled()
    assert [message.seeds for message in tokenizer.asked] == [[0], [1]]
    hear(holding=True)
    hear(holding=True, serving=1)
    assert kept[1].body.status == "queued"
    hear(serving=1, model="new")
    await settled()
    assert [each.body.status for each in kept] == ["completed", "failed"]
    assert kept[1].body.error is not None
    assert kept[1].body.error.code == "model_not_found"
    assert len(tokenizer.asked) == 2
