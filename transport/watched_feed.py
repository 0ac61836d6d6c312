"""A feed that knows whether anybody listens, so that nothing is made for nobody."""

from pathlib import Path
from typing import Any

import msgspec
import zmq

from transport.sockets import address

HIGH_WATER_MARK = 4
"""A listener that does not read misses messages; the next ones are newer anyway."""


class WatchedFeed:
    """The XPUB end, to be read by `Subscription`s."""

    def __init__(self, context: zmq.Context[Any], run_dir: str | Path, name: str) -> None:
        self._socket = context.socket(zmq.XPUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
        where = address(run_dir, name)
        Path(where.removeprefix("ipc://")).unlink(missing_ok=True)
        self._socket.bind(where)
        self._encoder = msgspec.msgpack.Encoder()
        self._watched = False

    @property
    def watched(self) -> bool:
        """Whether anybody listens now. ZMQ tells the first who comes and the last who goes, with 1 or 0 in the first byte."""
        while self._socket.poll(0):
            self._watched = self._socket.recv()[:1] == b"\x01"
        return self._watched

    def publish(self, message: msgspec.Struct) -> None:
        """Never blocks."""
        self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()
