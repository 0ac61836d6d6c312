"""Inboxes and outboxes: delivery, broken frames, full queues, restarts of either side."""

import asyncio
from pathlib import Path

import msgspec
import pytest
import zmq

from messages.request import Cancel, FromFrontend, Tokenize
from messages.text import Detokenized
from transport.columns import ColumnError, pack_f32, pack_i32, pack_i64, pack_u8, view_f32, view_i32, view_i64, view_u8
from transport.sockets import HIGH_WATER_MARK, Feed, Inbox, Outbox, Subscription, address

Context = zmq.Context[zmq.Socket[bytes]]


@pytest.fixture
def context() -> Context:
    return zmq.Context.instance()


def open_pair(context: Context, run_dir: Path) -> tuple[Inbox[FromFrontend], Outbox]:
    return Inbox(context, run_dir, "peer", FromFrontend), Outbox(context, run_dir, "peer")


def test_messages_arrive_in_order(context: Context, run_dir: Path) -> None:
    inbox, outbox = open_pair(context, run_dir)
    for key in range(100):
        assert outbox.send(Cancel([key]))
    received: list[FromFrontend] = []
    while len(received) < 100 and inbox.wait(30):
        received += inbox.drain()
    assert [message.keys for message in received if isinstance(message, Cancel)] == [[key] for key in range(100)]
    inbox.close()
    outbox.close()


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x00",
        b"\xff" * 100,
        b"not msgpack",
        msgspec.msgpack.encode({"type": "nonsense"}),
        msgspec.msgpack.encode(Detokenized(1, "wrong channel")),
        msgspec.msgpack.encode(Cancel([1]))[:-1],
        msgspec.msgpack.encode({"type": "cancel", "keys": [-1]}),
        msgspec.msgpack.encode({"type": "cancel", "keys": ["x"]}),
        b"\x91" * 100_000,
    ],
    ids=["empty", "zero", "ones", "text", "unknown-tag", "other-channel", "truncated", "bound", "wrong-type", "deep"],
)
def test_broken_frames_are_counted_and_dropped(context: Context, run_dir: Path, frame: bytes) -> None:
    inbox, outbox = open_pair(context, run_dir)
    outbox.send_frame(frame)
    outbox.send(Cancel([7]))
    received: list[FromFrontend] = []
    while not received and inbox.wait(30):
        received += inbox.drain()
    assert received == [Cancel([7])]
    assert inbox.bad_frames == 1
    inbox.close()
    outbox.close()


def test_multipart_is_refused(context: Context, run_dir: Path) -> None:
    inbox, outbox = open_pair(context, run_dir)
    outbox._socket.send_multipart([b"a", b"b"])
    assert inbox.wait(30)
    assert inbox.drain() == []
    assert inbox.bad_frames == 1
    inbox.close()
    outbox.close()


def test_a_full_queue_refuses_instead_of_blocking(context: Context, run_dir: Path) -> None:
    outbox = Outbox(context, run_dir, "nobody")
    sent = sum(outbox.send_frame(b"x") for _ in range(HIGH_WATER_MARK + 10))
    assert sent == HIGH_WATER_MARK
    assert outbox.dropped == 10
    outbox.close()


def test_a_restarted_inbox_gets_what_is_sent_afterwards(context: Context, run_dir: Path) -> None:
    first_life: Context = zmq.Context()
    inbox, outbox = Inbox[FromFrontend](first_life, run_dir, "peer", FromFrontend), Outbox(context, run_dir, "peer")
    outbox.send(Cancel([1]))
    assert inbox.wait(30)
    inbox.close()
    first_life.term()  # the socket file is unlinked when the context ends, as when a process exits
    inbox = Inbox(context, run_dir, "peer", FromFrontend)
    for key in range(2, 1000):  # the first ones may go out on the old connection, until it is known to be none any more
        outbox.send(Cancel([key]))
        if inbox.wait(0.03):
            break
    outbox.send(Cancel([1000]))
    received: list[FromFrontend] = []
    while Cancel([1000]) not in received and inbox.wait(30):
        received += inbox.drain()
    assert Cancel([1000]) in received
    inbox.close()
    outbox.close()


async def test_listen_survives_a_failing_callback(context: Context, run_dir: Path) -> None:
    inbox, outbox = open_pair(context, run_dir)
    seen: asyncio.Queue[FromFrontend] = asyncio.Queue()

    def callback(message: FromFrontend) -> None:
        if isinstance(message, Tokenize):
            raise ValueError("one bad message")
        seen.put_nowait(message)

    inbox.listen(callback)
    outbox.send(msgspec.convert({"type": "tokenize", "frontend": "f", "key": 1, "prompt": {"type": "text", "text": "x"}}, Tokenize))
    for key in range(3000):  # more than one drain
        outbox.send(Cancel([key]))
    keys = [(await asyncio.wait_for(seen.get(), 30)) for _ in range(3000)]
    assert keys == [Cancel([key]) for key in range(3000)]
    inbox.close()
    outbox.close()


def test_a_feed_keeps_only_the_newest(context: Context, run_dir: Path) -> None:
    feed = Feed(context, run_dir, "state")
    subscription: Subscription[Cancel] = Subscription(context, run_dir, "state", Cancel)
    newest = None
    for key in range(1000):
        feed.publish(Cancel([key]))
        subscription._socket.poll(5)
        newest = subscription.latest() or newest
        if newest is not None:
            break
    assert newest is not None
    feed.close()
    subscription.close()


def test_a_run_directory_that_is_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="too long"):
        address("/" + "x" * 120, "peer")


def test_columns_round_trip_and_check_their_length() -> None:
    assert view_i32(pack_i32([1, -2])).tolist() == [1, -2]
    assert view_i64(pack_i64([2**62])).tolist() == [2**62]
    assert view_f32(pack_f32([0.5]), 1).tolist() == [0.5]
    assert view_u8(pack_u8([255])).tolist() == [255]
    for data, length in ((b"abc", None), (pack_i32([1, 2]), 3)):
        with pytest.raises(ColumnError):
            view_i32(data, length)
