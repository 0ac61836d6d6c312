"""`top`: what the live page shows, in the terminal, from the same stream."""

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator

from launcher.client import find_server
from launcher.errors import LauncherError, program
from launcher.top_text import Told, screen

HOME, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
ENTER, LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
"""The terminal's other screen, without a cursor; and back."""
SILENT_SECONDS = 10.0
"""Something comes every second, from a server that is well."""
TRIES_SECONDS, AGAIN_SECONDS = 30.0, 1.0
NEEDED = {"hello", "scene", "processes", "sample"}


def run(args: argparse.Namespace) -> int:
    """Entry point: draws until Ctrl-C, or once. Raises LauncherError when the server cannot be reached, or goes away."""
    told = Told()
    if args.once or not sys.stdout.isatty():
        for _ in _follow(args, told, 0.0):
            if told.keys() >= NEEDED:
                print("\n".join(screen(told, *shutil.get_terminal_size((120, 60)))))
                break
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the terminal is left as it was
    sys.stdout.write(ENTER)
    try:
        drawn = 0.0
        for lost in _follow(args, told, TRIES_SECONDS):
            if lost is not None:
                sys.stdout.write(f"{HOME}{lost}: trying again{CLEAR_LINE}")
                sys.stdout.flush()
            elif "scene" in told and time.monotonic() - drawn >= args.interval:
                drawn = time.monotonic()
                _draw(told)
    except KeyboardInterrupt:
        return 0
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
    return 1


def _follow(args: argparse.Namespace, told: Told, tries: float) -> Iterator[LauncherError | None]:
    """None each time something was told; where the stream breaks off, why, each time before it is begun again, for `tries` seconds."""
    limit = 0.0
    while True:
        try:
            for name, data in find_server(args.url, args.port, SILENT_SECONDS).events("/live/events"):
                told[name], limit = data, time.monotonic() + tries
                yield None
            lost = LauncherError(f"the server has ended the stream; what runs is told by: {program()} cluster status")
        except LauncherError as error:
            lost = error
        if time.monotonic() >= limit:
            raise lost
        yield lost
        time.sleep(AGAIN_SECONDS)


def _draw(told: Told) -> None:
    width, height = shutil.get_terminal_size()
    lines = screen(told, width, height)
    sys.stdout.write(HOME + "".join(line + CLEAR_LINE + os.linesep for line in lines[:-1]) + lines[-1] + CLEAR_LINE + CLEAR_BELOW)
    sys.stdout.flush()
