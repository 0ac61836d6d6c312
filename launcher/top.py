"""`top`: what the live page shows, in the terminal, from the same stream."""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator

from launcher.client import find_server
from launcher.errors import LauncherError
from launcher.top_text import Told, screen

HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The terminal's other screen, without a cursor; and back."""
NEEDED = {"hello", "scene", "processes", "sample"}


def run(args: argparse.Namespace) -> int:
    """Entry point: draws until Ctrl-C, or once. Raises LauncherError when the server cannot be reached, or goes away."""
    told = Told()
    if args.once or not sys.stdout.isatty():
        for _ in _follow(args, told):
            if told.keys() >= NEEDED:
                print("\n".join(screen(told, *shutil.get_terminal_size((120, 60)))))
                return 0
        raise LauncherError("the server has ended the stream")
    sys.stdout.write(ENTER)
    try:
        drawn = 0.0
        for _ in _follow(args, told):
            if "scene" in told and time.monotonic() - drawn >= args.interval:
                drawn = time.monotonic()
                _draw(told)
    except KeyboardInterrupt:
        return 0
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
    raise LauncherError("the server has ended the stream")


def _follow(args: argparse.Namespace, told: Told) -> Iterator[None]:
    """Each time something was told."""
    for name, data in find_server(args.url, args.port).events("/live/events"):
        told[name] = data
        yield


def _draw(told: Told) -> None:
    width, height = shutil.get_terminal_size()
    lines = screen(told, width, height)
    sys.stdout.write(HOME + "".join(line + CLEAR_LINE + os.linesep for line in lines[:-1]) + lines[-1] + CLEAR_LINE + CLEAR_BELOW)
    sys.stdout.flush()
