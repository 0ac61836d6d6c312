"""One command to the supervisor of a run directory, and what it answers."""

from pathlib import Path
from typing import Any

import msgspec
import zmq

from messages.cluster import CONTROL, Command, CommandReply
from transport.sockets import address


class NoAnswerError(Exception):
    """A sentence."""


def ask(run_dir: str | Path, command: Command, seconds: float = 3.0) -> CommandReply:
    """Blocks for at most so many seconds. Raises NoAnswerError when no answer has come then, or one that makes no sense."""
    context: zmq.Context[Any] = zmq.Context()
    socket = context.socket(zmq.REQ)
    try:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address(run_dir, CONTROL))
        socket.send(msgspec.msgpack.encode(command))
        if not socket.poll(round(seconds * 1000)):
            raise NoAnswerError(f"the supervisor of {run_dir} does not answer")
        answer: CommandReply = msgspec.msgpack.decode(socket.recv(), type=CommandReply)
        return answer
    except msgspec.DecodeError as error:
        raise NoAnswerError(f"the supervisor of {run_dir} gave an answer that makes no sense: {error}") from error
    finally:
        socket.close()
        context.term()
