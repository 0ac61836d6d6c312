"""How a child process begins and ends: its arguments, its title, its signals, and that it never outlives launch.py."""

import ctypes
import logging
import os
import signal
import sys
import threading
from types import FrameType
from typing import TypeVar

import msgspec
import setproctitle

ARGUMENTS_VARIABLE = "PAGEWIRE_PROCESS"
PR_SET_PDEATHSIG = 1

A = TypeVar("A")


class ProcessArgs(msgspec.Struct, frozen=True, kw_only=True):
    """What every child gets from the supervisor. `death_fd`: the read end of a pipe that closes when the supervisor dies (-1 in tests).

    `trace`: a file that is there, for events of this process (see transport.trace).
    """

    name: str
    incarnation: int
    run_dir: str
    death_fd: int = -1
    log_level: str = "info"
    trace: str | None = None


class Stopping:
    """Whether this process was asked to end. Unlike an Event it takes no lock: a signal may come while another one is within it."""

    def __init__(self) -> None:
        self._asked = False

    def set(self) -> None:
        self._asked = True

    def is_set(self) -> bool:
        return self._asked


class Lifetime:
    """Signals and parent of this process. SIGTERM asks to stop (`stopping`); SIGINT is the supervisor's business and is ignored."""

    def __init__(self, args: ProcessArgs) -> None:
        self.stopping = Stopping()
        setproctitle.setproctitle(f"pagewire {args.name}")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._on_terminate)
        if args.death_fd >= 0:
            _die_with_parent(args.death_fd)

    def _on_terminate(self, signum: int, frame: FrameType | None) -> None:
        self.stopping.set()


def _die_with_parent(death_fd: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def watch() -> None:
        os.read(death_fd, 1)  # returns at end of file: the supervisor is gone
        os._exit(1)

    threading.Thread(target=watch, name="death-pipe", daemon=True).start()


def read_arguments(kind: type[A]) -> A:
    """This process's arguments: JSON in the environment variable PAGEWIRE_PROCESS. Raises SystemExit with a sentence when they are off."""
    text = os.environ.pop(ARGUMENTS_VARIABLE, "")
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.DecodeError as error:
        raise SystemExit(f"{ARGUMENTS_VARIABLE} does not hold arguments of this process ({error}); start it with launch.py") from error


def set_up_logging(args: ProcessArgs) -> None:
    """Log lines to standard error: time, level, process name, message."""
    logging.basicConfig(
        level=args.log_level.upper(),
        format=f"%(asctime)s %(levelname).1s {args.name:<10} %(message)s",
        datefmt="%H:%M:%S",
        force=True,
    )
