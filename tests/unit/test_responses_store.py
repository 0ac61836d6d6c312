"""What is kept of responses, in how much memory, and for whom."""

import random
import sys

import msgspec
import pytest

from frontend.errors import ApiError
from frontend.responses import store as module
from frontend.responses.body import ResponseBody, TextFormat, TextSettings
from frontend.responses.items import said
from frontend.responses.store import Kept, Store
from tests.support.journal_records import body_of, name_of


def ended(number: int, key: str = "alice", text: str = "A", status: str = "completed") -> Kept:
    body = body_of(number, status)
    body.output = [said("B", "assistant")]
    return Kept(body, key, [said(text, "user")])


def names(store: Store, count: int) -> list[int]:
    """Which of the first `count` are kept."""
    return [number for number in range(count) if store.find(name_of(number), None)]


def test_the_least_recently_asked_for_goes_first() -> None:
    lost: list[str] = []
    store = Store(lambda kept: lost.append(kept.id), max_ended=3)
    for number in range(3):
        store.end(ended(number))
    assert store.find(name_of(0), "alice") is not None
    store.end(ended(3))
    assert lost == [name_of(1)]
    assert names(store, 4) == [0, 2, 3]


def test_bytes_are_bounded_and_who_fills_them_loses_them() -> None:
    """One key's flood does not take what others have kept."""
    one = ended(0, "alice").size
    store = Store(max_bytes=10 * one)
    store.end(ended(0, "alice"))
    for number in range(1, 60):
        store.end(ended(number, "bob"))
        assert store.ended_bytes <= 10 * one
    assert names(store, 60) == [0, *range(51, 60)]
    store.end(ended(60, "carol", "x" * 20 * one))
    assert names(store, 60) == [0, *range(51, 60)]
    assert store.find(name_of(60), None) is None


def test_another_keys_response_is_not_there_and_is_not_touched() -> None:
    store = Store(max_ended=2)
    store.end(ended(0, "alice"))
    store.end(ended(1, "alice"))
    assert store.find(name_of(0), "bob") is None
    assert store.find(name_of(0), None) is not None
    assert store.find(name_of(1), "alice") is not None
    store.end(ended(2, "alice"))
    assert names(store, 3) == [1, 2]


def test_what_runs_is_never_lost_and_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_RUNNING", 2)
    store = Store(max_ended=1)
    running = [ended(number, status="queued") for number in range(2)]
    for kept in running:
        store.check_room(kept.size)
        store.begin(kept)
    with pytest.raises(ApiError) as error:
        store.check_room(1)
    assert (error.value.status, error.value.code, error.value.retry_after) == (429, "queue_full", 2.0)
    for number in range(10, 20):
        store.end(ended(number))
    assert names(store, 2) == [0, 1]
    store.remove(running[0])
    store.check_room(1)
    monkeypatch.setattr(module, "MAX_RUNNING_BYTES", running[1].size + 100)
    with pytest.raises(ApiError):
        store.check_room(101)


def test_the_books_are_right_whatever_happens() -> None:
    pick, store = random.Random(5), Store(max_ended=8, max_bytes=40_000)
    known: list[Kept] = []
    for number in range(600):
        way = pick.randrange(4)
        if way < 2 or not known:
            kept = ended(number, pick.choice("ab"), "x" * pick.randrange(3000), "queued" if way else "completed")
            (store.begin if way else store.end)(kept)
            known.append(kept)
        elif way == 2:
            store.remove(pick.choice(known))
        else:
            running = [kept for kept in known if kept.id in store.running]
            if running:
                kept = pick.choice(running)
                kept.body.status = "completed"
                store.end(kept)
        alive = [kept for kept in known if store.find(kept.id, None) is kept]
        assert store.running_bytes == sum(kept.size for kept in alive if kept.id in store.running)
        assert store.ended_bytes == sum(kept.size for kept in alive if kept.id not in store.running)
        assert store.ended == len(alive) - len(store.running) <= 8
    for kept in known:
        store.remove(kept)
    assert (store.running_bytes, store.ended_bytes, store.ended) == (0, 0, 0)


def test_a_response_that_was_read_again_does_not_hold_all_it_was_read_from() -> None:
    """Its tools and its schema are JSON that is kept as it is: of a text they were read from, the rest would be kept and not counted."""
    body = body_of(1)
    body.tools, body.text = [msgspec.Raw(b'{"a":1}')], TextSettings(TextFormat("json_schema", schema=msgspec.Raw(b'{"b":2}')))
    text = msgspec.json.encode(body)
    held = sys.getrefcount(text)
    read = msgspec.json.decode(text, type=ResponseBody)
    assert sys.getrefcount(text) > held
    read.detach()
    assert sys.getrefcount(text) == held
    assert msgspec.json.encode(read) == text
