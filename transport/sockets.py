"""Inboxes and outboxes: each process binds one PULL socket under its own name in the run directory; peers PUSH to it.

One frame is one MessagePack-encoded Struct. A frame that does not decode is counted, logged (rate-limited) and dropped. Sends never
block: a full socket gives False and is counted. `ipc://` only; the run directory is private (0700).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq

log = logging.getLogger(__name__)

M = TypeVar("M")
MAX_FRAME_BYTES = 256 << 20
HIGH_WATER_MARK = 65_536
MAX_DRAIN = 1024


def address(run_dir: str | Path, name: str) -> str:
    """The ZMQ address of the inbox (or published feed) called `name`. Raises ValueError when the path is too long for a UNIX socket."""
    path = f"{run_dir}/{name}.sock"
    if len(path.encode()) > 100:
        raise ValueError(f"run directory path too long for a UNIX socket: {path}")
    return f"ipc://{path}"


class Decoder(Generic[M]):
    """Decodes frames of one union of message types; bad frames give None and are counted in `bad_frames`."""

    def __init__(self, accepts: Any, name: str) -> None:
        self._decode = msgspec.msgpack.Decoder(accepts).decode
        self._name = name
        self._last_log = 0.0
        self.bad_frames = 0

    def decode(self, frame: bytes) -> M | None:
        try:
            message: M = self._decode(frame)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            self.reject(f"{error}; {len(frame)} bytes")
            return None
        return message

    def reject(self, why: str) -> None:
        self.bad_frames += 1
        now = time.monotonic()
        if now - self._last_log > 1.0:
            self._last_log = now
            log.warning("dropped a bad frame at %s (%d so far): %s", self._name, self.bad_frames, why)


class Inbox(Generic[M]):
    """The bound PULL end of a process. `accepts` is a union of tagged Structs.

    Synchronous use: `drain()`, `wait(seconds)`. asyncio use: `listen(callback)` on the running loop.
    """

    def __init__(self, context: zmq.Context[Any], run_dir: str | Path, name: str, accepts: Any) -> None:
        self._socket = context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        where = address(run_dir, name)
        Path(where.removeprefix("ipc://")).unlink(missing_ok=True)
        self._socket.bind(where)
        self._decoder: Decoder[M] = Decoder(accepts, name)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def bad_frames(self) -> int:
        return self._decoder.bad_frames

    def reject(self, why: str) -> None:
        """Count a message that decoded but whose content breaks the contract (a column of the wrong length, say)."""
        self._decoder.reject(why)

    def drain(self, limit: int = MAX_DRAIN) -> list[M]:
        """All messages that are here now, at most `limit`; never blocks."""
        messages: list[M] = []
        for _ in range(limit):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(parts) != 1:
                self.reject(f"{len(parts)} frames instead of one")
                continue
            message = self._decoder.decode(parts[0])
            if message is not None:
                messages.append(message)
        return messages

    def wait(self, seconds: float) -> bool:
        """Block until a message is here or `seconds` have passed; True if one is here."""
        return bool(self._socket.poll(max(0, round(seconds * 1000))))

    def listen(self, callback: Callable[[M], None]) -> None:
        """Call `callback` for every message from the running loop. The ZMQ descriptor is edge-triggered: drained to the end each time."""
        loop = self._loop = asyncio.get_running_loop()

        def readable() -> None:
            if self._socket.closed:
                return
            batch = self.drain()
            for message in batch:
                try:
                    callback(message)
                except Exception:  # one message must not end the process; it is logged with its traceback
                    log.exception("handling %s failed", type(message).__name__)
            if batch or self._socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                loop.call_soon(readable)  # let other callbacks run between batches

        loop.add_reader(self._socket.getsockopt(zmq.FD), readable)
        loop.call_soon(readable)

    def close(self) -> None:
        if self._loop is not None and not self._socket.closed:
            self._loop.remove_reader(self._socket.getsockopt(zmq.FD))
        self._socket.close()


class Outbox:
    """The PUSH end to another process's inbox. Messages wait (bounded) while the peer is starting or restarting."""

    def __init__(self, context: zmq.Context[Any], run_dir: str | Path, name: str, linger_ms: int = 0) -> None:
        self._socket = context.socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, linger_ms)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        self._socket.connect(address(run_dir, name))
        self._encoder = msgspec.msgpack.Encoder()
        self._name = name
        self.dropped = 0

    def send(self, message: msgspec.Struct) -> bool:
        """Encode and queue; False (counted, logged) when the peer's queue is full. Never blocks."""
        return self.send_frame(self._encoder.encode(message))

    def send_frame(self, frame: bytes) -> bool:
        """Like `send`, for a frame already encoded (tests send broken ones)."""
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            self.dropped += 1
            if self.dropped & (self.dropped - 1) == 0:
                log.error("the queue to %s is full: %d messages dropped", self._name, self.dropped)
            return False
        return True

    def close(self) -> None:
        self._socket.close()


class Feed:
    """The PUB end of the cluster state."""

    def __init__(self, context: zmq.Context[Any], run_dir: str | Path, name: str) -> None:
        self._socket = context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        where = address(run_dir, name)
        Path(where.removeprefix("ipc://")).unlink(missing_ok=True)
        self._socket.bind(where)
        self._encoder = msgspec.msgpack.Encoder()

    def publish(self, message: msgspec.Struct) -> None:
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()


class Subscription(Generic[M]):
    """The SUB end of a feed; only the newest message is kept."""

    def __init__(self, context: zmq.Context[Any], run_dir: str | Path, name: str, accepts: Any) -> None:
        self._socket = context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.CONFLATE, 1)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
        self._socket.connect(address(run_dir, name))
        self._decoder: Decoder[M] = Decoder(accepts, name)

    def latest(self) -> M | None:
        """The newest message since the last call, or None. Never blocks."""
        try:
            frame = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return self._decoder.decode(frame)

    def close(self) -> None:
        self._socket.close()
