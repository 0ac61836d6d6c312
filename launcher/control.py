"""The control socket: people's commands (`cluster status`, `cluster stop`) to a running supervisor."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import zmq

from launcher.errors import LauncherError
from messages.cluster import CONTROL, Command, CommandReply
from transport.sockets import address

log = logging.getLogger(__name__)

MAX_COMMAND_BYTES = 65_536


class ControlServer:
    """The supervisor's REP end. A frame that is no command is answered with an empty frame, since a REP socket must answer."""

    def __init__(self, context: zmq.Context[Any], run_dir: Path) -> None:
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_COMMAND_BYTES)
        self._socket.bind(address(run_dir, CONTROL))
        self._decoder = msgspec.msgpack.Decoder(Command)
        self._encode = msgspec.msgpack.Encoder().encode

    def receive(self) -> Command | None:
        """The next command, or None. Never blocks. Every command must be answered with `reply` before the next `receive`."""
        try:
            frame = b"".join(self._socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            return None
        try:
            return self._decoder.decode(frame)
        except (msgspec.DecodeError, RecursionError) as error:
            log.warning("dropped a bad command: %s", error)
            self._socket.send(b"", zmq.NOBLOCK)
            return None

    def reply(self, answer: CommandReply) -> None:
        self._socket.send(self._encode(answer), zmq.NOBLOCK)

    def close(self) -> None:
        self._socket.close()


def ask(run_dir: Path, command: Command, seconds: float = 3.0) -> CommandReply:
    """Send one command to the supervisor of `run_dir`. Raises LauncherError when it does not answer in time."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.REQ)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address(run_dir, CONTROL))
        socket.send(msgspec.msgpack.encode(command))
        if not socket.poll(round(seconds * 1000)):
            raise LauncherError(f"the supervisor of {run_dir} does not answer")
        return msgspec.msgpack.decode(socket.recv(), type=CommandReply)
    except msgspec.DecodeError as error:
        raise LauncherError(f"the supervisor of {run_dir} gave an answer that makes no sense: {error}") from error
    finally:
        socket.close()
        context.term()
