"""Background responses beside the engine's line: a bounded number is in it, the others wait here in order."""

import asyncio
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
from frontend.responses import background
from frontend.responses.events import EventLog, OutputTextDelta
from frontend.responses.journal_file import JournalError, pack
from frontend.responses.request import ResponsesRequest
from frontend.responses.restoring import open_journal
from frontend.responses.store import Kept
from frontend.responses.streaming import merged
from frontend.service import make_app
from messages.cluster import READY, ClusterState, ProcessState
from messages.journal import TITLE, Record
from messages.request import Generate
from messages.text import Ended, Started, TextDelta
from tests.support.journal_records import accepted, concluded, name_of


class Tokenizer:
    """An outbox; what was sent to it waits to be answered."""

    def __init__(self) -> None:
        self.asked: list[Generate] = []

    def send(self, message: msgspec.Struct) -> bool:
        if isinstance(message, Generate):
            self.asked.append(message)
        return True


def make_core(tokenizer: Tokenizer, model: str = "m") -> Core:
    args = FrontendArgs(name="frontend0", incarnation=1, run_dir="", host="", port=0, model_name=model, tokenizers=["tokenizer0"], created=0)
    view = ClusterView(args.tokenizers)
    scheduler = ProcessState(name="scheduler", incarnation=1, pid=2, phase=READY, facts={"context": 100})
    processes = [ProcessState(name="tokenizer0", incarnation=1, pid=1, phase=READY), scheduler]
    view.update(ClusterState(ready=True, phase=READY, reason="", model=model, started=0.0, processes=processes))
    metrics = Metrics("m", view)
    return Core(args, view, metrics, Dispatcher("frontend0", {"tokenizer0": tokenizer}, view, metrics))


async def begin(core: Core, number: int) -> Kept:
    request = ResponsesRequest(input="A", background=True, seed=number)
    work = request.work([], {}, "")
    job = background.make_job(core, request.body(name_of(number), 0, "m", work.sampling), "", [], work)
    await background.accept(core, job)
    return job.kept


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def answer(core: Core, message: Generate, **more: Any) -> None:
    core.dispatcher.receive(Started(message.keys[0], 1))
    core.dispatcher.receive(Ended(key=message.keys[0], finish="stop", **more))


async def test_a_bounded_number_is_with_the_engine_and_the_others_follow_in_order() -> None:
    tokenizer = Tokenizer()
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
    core = make_core(Tokenizer())
    kept = await begin(core, 1)
    await background.cancel(core, kept)
    assert kept.body.status == "cancelled"
    assert kept.events().ended


async def test_a_journal_is_taken_up_as_far_as_it_can_be_read(tmp_path: Path) -> None:
    """Damaged records, one whose response is none, one of another model: the others are as they were, or are made again."""
    path, letter, tokenizer = tmp_path / "journal", tmp_path / "letter", Tokenizer()
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


async def test_events_that_are_gone_are_said_to_be() -> None:
    """At once when the first that is asked for is gone, and in the stream when a reader falls behind what is kept."""
    core = make_core(Tokenizer())
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


def test_a_slow_reader_gets_one_delta_for_all_that_waits() -> None:
    end = Ended(key=1, finish="length", text="C")
    assert list(merged([(0, "A"), (0, TextDelta(1, "B", [7])), (0, end)])) == [(0, "ABC"), (0, msgspec.structs.replace(end, text=""))]
    assert list(merged([(0, "A"), (0, "B")])) == [(0, "AB")]
    assert list(merged([])) == []


async def test_a_mistake_of_ours_is_an_end(caplog: Any) -> None:
    tokenizer = Tokenizer()
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
    tokenizer = Tokenizer()
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
