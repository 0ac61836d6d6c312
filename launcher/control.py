"""The control socket: people's commands (`cluster status`, `cluster stop`) to a running supervisor."""

import logging
from pathlib import Path
from typing import Any

import msgspec
import zmq

from launcher.errors import LauncherError
from messages.cluster import CONTROL, Command, CommandReply
from transport import command as transport
from transport.command import NoAnswerError
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


def ask(run_dir: Path, command: Command) -> CommandReply:
    """Send one command to the supervisor of `run_dir`. Raises LauncherError when it does not answer in time."""
    try:
        return transport.ask(run_dir, command)
    except NoAnswerError as error:
        raise LauncherError(str(error)) from error
